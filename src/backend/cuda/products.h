// Products, with the choice of kernels and the rounding of rows before them.
#pragma once

#include "backend/cuda/kernels/views.h"
#include "backend/cuda/packing.h"
#include "backend/cuda/runtime/memory.h"
#include "ops/ops.h"

namespace tercet::cuda {

/// What a kernel of product_few.h can take: affine weights in groups of 64 with bf16 scales.
inline bool fragments(const Weights& w) { return w.planes != 0 && w.group == kBlock && w.wide == 0; }

class Products {
 public:
  Products(Launcher& launcher, int64_t& held, bool plain);

  /// Norms also round their result for the products that follow; it counts as long as nobody writes to it.
  void norm(Rows x, Rows z, Vector weight, float eps, Rows h);
  void norm_into(const float* x, int64_t ldx, int64_t rows, Vector weight, float eps, float* h, int64_t ldh);
  void written(Rows rows);
  void forget() { rounded_ = {}; }

  /// Row i of y is of h's row ids[i] (ids on the device; null: i).
  void linear(uint8_t* failed, Rows h, const int32_t* ids, const PackedLinear& weights, Rows y);
  void gate_up(uint8_t* failed, Rows h, const PackedLinear& weights, Rows a);
  void route(uint8_t* failed, Rows h, const Weights& router, Vector bias, RouterParams params, Routes routes);
  void experts_gate_up(uint8_t* failed, Rows h, const Routes& routes, const PackedExperts& experts, Rows a);
  void experts_down(uint8_t* failed, Rows a, const Routes& routes, const PackedExperts& experts, Rows shared,
                    Rows z);

 private:
  /// Rounded planes of rows, and where their failures are, if not in the step's flags already.
  struct Planes {
    Rounded rows;
    const uint8_t* unfit = nullptr;
  };

  bool fast(const Weights& w) const { return !plain_ && fragments(w); }
  bool fast(const PackedExperts& experts) const;
  Planes planes_of(Rows h, uint8_t* failed, int64_t flag_div);
  void plain_linear(uint8_t* failed, Rows h, const int32_t* ids, const Part& part, const Part* before,
                    Rows y);
  void plain_pairs(uint8_t* failed, Rows x, int64_t x_div, const Routes& routes, const Weights* list,
                   int64_t least_group, int64_t n, float* y, int64_t ldy);
  struct Items;
  Items sorted_pairs(const Routes& routes, int64_t count);

  Launcher& launcher_;
  const bool plain_;
  Rows rounded_;  // the rows whose rounded form norm_planes_ holds
  Scratch norm_planes_, norm_units_, unfit_;
  Scratch numbers_, units_, planes_, plane_units_, rest_, y_, sorted_, items_;
};

}  // namespace tercet::cuda
