// Products, and the rounding of rows before them, by the kernels that select/ names.
#pragma once

#include "backend/cuda/kernels/leaf_sums.h"
#include "backend/cuda/kernels/product.h"
#include "backend/cuda/kernels/product_few.h"
#include "backend/cuda/kernels/router.h"
#include "backend/cuda/kernels/rows.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/packing.h"
#include "backend/cuda/runtime/memory.h"
#include "backend/cuda/select/products.h"
#include "backend/cuda/step_programs.h"
#include "ops/ops.h"

namespace tercet::cuda {

/// The choice of `experts` experts from logits, but for where a row's two lie among them.
ChooseParams choice_of(uint8_t* failed, const float* logits, int64_t rows, int32_t experts, Vector bias,
                       RouterParams params, Routes routes);

class Products {
 public:
  Products(Launcher& launcher, int64_t& held, const DeviceTraits& device);

  /// Norms also round their result for the products that follow; it counts as long as nobody writes to it.
  void norm(Rows x, Rows z, Vector weight, float eps, Rows h);
  void norm_into(const float* x, int64_t ldx, int64_t rows, Vector weight, float eps, float* h, int64_t ldh);
  void written(Rows rows);
  void forget() {
    held_ = {};
    sort_of_ = {};
  }
  /// Where whoever computes rows leaves them rounded into halves for the product that follows, rows that fail
  /// being flagged; what a norm left is gone. They count from hold_rounded() on.
  Rounded room_for(Rows rows);
  void hold_rounded(Rows rows) { held_ = {rows, false, true}; }
  /// The experts' results, and the leaves of a product, may wait for what follows to sum them up, the
  /// router's choice and the shared expert for the experts, with which they share kernels. Whatever reads or
  /// writes memory of a step otherwise calls this before; their weights must stay until then.
  void settle();
  /// Of y's leaves, what settle() would make y of; nothing where y is there. Whoever takes it makes y.
  LeafSumParams take_leaves(Rows y);
  /// Operations that are collected instead of queued.
  StepPrograms& program() { return program_; }
  /// Queues what is collected.
  void flush();

  /// Row i of y is of h's row ids[i] (ids on the device; null: i).
  void linear(uint8_t* failed, Rows h, const int32_t* ids, const PackedLinear& weights, Rows y);
  void gate_up(uint8_t* failed, Rows h, const PackedLinear& weights, Rows a);
  void route(uint8_t* failed, Rows h, const PackedLinear& router, Vector bias, RouterParams params,
             Routes routes);
  void experts_gate_up(uint8_t* failed, Rows h, const Routes& routes, const PackedExperts& experts, Rows a);
  void experts_down(uint8_t* failed, Rows a, const Routes& routes, const PackedExperts& experts, Rows shared,
                    Rows z);

 private:
  enum class Form { planes, halves, floats };

  /// Rows whose rounded forms norm() or hold_rounded() left.
  struct Held {
    Rows rows;
    bool planes = false, halves = false;
    bool rest = false;   // behind the halves, those of what the rounding left
    bool flags = false;  // unfit_ tells which rows failed; else the step's flags do

    bool holds(Rows h, Form form) const {
      return rows.data == h.data && rows.cols == h.cols && rows.rows >= h.rows &&
             (form == Form::planes ? planes : form == Form::halves && halves);
    }
  };

  /// Rounded rows, and where their failures are, if not in the step's flags already.
  struct Ready {
    Rounded rows;
    const int32_t* ids = nullptr;  // of the rows that are wanted among them
    const uint8_t* unfit = nullptr;
  };

  static Form form_for(ProductKernel kernel) {
    if (kernel == ProductKernel::floats) return Form::floats;
    const bool halves = kernel == ProductKernel::many || kernel == ProductKernel::mma;
    return halves ? Form::halves : Form::planes;
  }
  static Form form_for(ExpertsKernel kernel) {
    if (kernel == ExpertsKernel::sorted_floats) return Form::floats;
    const bool halves = kernel == ExpertsKernel::sorted_batch || kernel == ExpertsKernel::sorted_many ||
                        kernel == ExpertsKernel::sorted_mma;
    return halves ? Form::halves : Form::planes;
  }
  static bool any_form(ProductKernel kernel) {
    return kernel == ProductKernel::plain || kernel == ProductKernel::warps;
  }
  Rounded room(Scratch& numbers, Scratch& units, int64_t rows, int64_t k, Form form);
  /// Rows ids[0 … count) of h, or all.
  Ready round(Rows h, const int32_t* ids, int64_t count, uint8_t* failed, int64_t flag_div, Form form);
  /// Rows of a, whose failures count for every flag_div-th of the step, then those of `beside`, as halves.
  Rounded round_beside(Rows a, Rows beside, uint8_t* failed, int64_t flag_div);
  void run_rounding(const RoundParams& p, Form form);
  /// Whether the program has taken an operation; else all that is collected is queued.
  bool collected(bool taken);
  void run_norm(Rows x, Rows z, Vector weight, float eps, Rows h);
  void run(const FewProductParams& p, ProductKernel kernel);
  void run_many(FewProductParams p, ProductKernel kernel, bool sums_wait);
  /// Gives p's leaves memory of their own, where blocks take a leaf each; else leaf_stride is 0.
  LeafSumParams part_leaves(FewProductParams& p, int64_t leaf_stride);
  /// Queues a product of halves; what is to be summed up then, if anything.
  LeafSumParams queue_many(FewProductParams p, ProductKernel kernel);
  void sum_leaves();
  void run_linear(uint8_t* failed, Rows h, const int32_t* ids, const PackedLinear& weights, Rows y);
  void run_gate_up(uint8_t* failed, Rows h, const PackedLinear& weights, Rows a);
  bool gate_up_waits(Rows h, const PackedLinear& weights, Rows a);
  bool down_waits(Rows h, const int32_t* ids, const PackedLinear& weights, Rows y);
  void run_any_form(const ProductParams& p);
  void any_linear(uint8_t* failed, Rows h, const int32_t* ids, const Part& part, const Part* before, Rows y);
  void any_pairs(uint8_t* failed, Rows x, int64_t x_div, const Routes& routes, const Weights* list,
                 int64_t least_group, int64_t n, float* y, int64_t ldy);
  /// The router's rows as its product takes them, and where choose_experts() then finds their logits.
  Rounded round_for_router(uint8_t* failed, Rows h, const Weights& router, ProductKernel kernel,
                           ChooseParams& choose);
  /// The pairs of so many rows and more that take one more expert, sorted by expert, at most `here` together;
  /// after the choice that decides them, if that waits.
  struct Sorted {
    const PairItem* items;
    int64_t most;  // items
  };
  Sorted sort(const Routes& routes, int64_t count, int32_t here, int64_t beside, const ChooseParams* choose);
  /// How many pairs of an expert a block takes at a time.
  int32_t pairs_together(const Weights& weights, bool swiglu, int64_t pairs, const PackedExperts& experts,
                         ExpertsKernel kernel) const;
  /// A product of pairs that sort() has sorted.
  void run_items(FewProductParams p, const Sorted& sorted, int32_t here, ExpertsKernel kernel);

  Launcher& launcher_;
  const DeviceTraits device_;
  StepPrograms program_;
  Held held_;
  /// Of which routes sorted_ and items_ hold the pairs.
  struct {
    const int32_t* experts = nullptr;
    int64_t pairs = 0, beside = 0;
    int32_t together = 0;
    bool known = false;  // FewProductParams
  } sort_of_;
  /// What waits for the experts of the same rows.
  struct Waiting {
    const int32_t* experts = nullptr;  // that `choose` chooses
    ChooseParams choose{};             // logits: null where nothing has to be chosen
    uint8_t* failed = nullptr;
    const PackedLinear* gate_up = nullptr;
    const PackedLinear* down = nullptr;
    Rows h, a, shared;
  };
  Waiting waiting_;
  /// Whether the shared expert, which waits, goes with the experts.
  bool shares_kernels(const Waiting& own, Rows h, const Routes& routes, const PackedExperts& experts) const;
  CombineParams unsettled_{};  // where z is not null
  LeafSumParams unsummed_{};   // where y is not null
  Scratch norm_planes_, norm_units_, norm_halves_, norm_sums_, unfit_;
  Scratch wholes_, whole_units_;  // rows for product_floats(), which rows of other forms do not disturb
  Scratch numbers_, units_, planes_, plane_units_, halves_, sums_, leaves_, rest_, y_, sorted_, items_;
  DeviceBytes ticket_;  // ChooseAndSortParams
};

}  // namespace tercet::cuda
