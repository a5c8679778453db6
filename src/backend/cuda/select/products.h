// Which kernels compute products, and which round their rows.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/select/device.h"

namespace tercet::cuda {

enum class ProductKernel : uint8_t {
  plain,   // product.h, after round_rows()
  warps,   // product_warps.h likewise
  row,     // product_row.h
  few,     // product_few.h
  many,    // product_many.h
  mma,     // product_mma.h
  floats,  // product_floats.h, after round_rows()
};

/// For weights of any form: plain or warps.
Choice<ProductKernel> choose_any_form(const DeviceTraits& device);

/// For `rows` rows. `tame`: PackedLinear's. All parts of one linear with rows that are rounded for them get
/// `many` or `mma`, which take halves, or none does.
Choice<ProductKernel> choose_product(const DeviceTraits& device, const Weights& weights, int64_t rows,
                                     bool tame, bool swiglu = false);

/// For `rows` rows, each of which enters twice (rule 10).
Choice<ProductKernel> choose_router(const DeviceTraits& device, const Weights& weights, int64_t rows,
                                    bool tame);

/// Whether gate and up, stacked in `parts` parts of which the first is `weights`, become SwiGLU's values in
/// the product's own kernel; else a kernel of its own follows.
bool swiglu_inside(const DeviceTraits& device, const Weights& weights, size_t parts, int64_t inter);

enum class ExpertsKernel : uint8_t {
  any_form,       // what choose_any_form() says, expert by expert
  row,            // product_row.h, a pair of a row and an expert at a time; down_few() for down
  few,            // product_few.h likewise, for gate and up alone
  sorted_few,     // product_few.h, pairs sorted by expert
  sorted_batch,   // product_batch.h likewise
  sorted_many,    // product_many.h likewise
  sorted_mma,     // product_mma.h likewise
  sorted_floats,  // product_floats.h likewise
};

/// Of all experts, where they have one form (`alike`).
struct ExpertsForm {
  Weights gate_up, down;
  bool alike = false;
  bool tame = false;
  int64_t count = 0;
};

/// Warps of a block of product_batch().
int batch_warps(const DeviceTraits& device, const Weights& weights);

/// For so many pairs of a row and an expert, `chosen` of each row.
Choice<ExpertsKernel> choose_experts_gate_up(const DeviceTraits& device, const ExpertsForm& experts,
                                             int64_t pairs);
Choice<ExpertsKernel> choose_experts_down(const DeviceTraits& device, const ExpertsForm& experts,
                                          int64_t pairs, int64_t chosen);

/// Whether a shared expert of such weights, which are `tame`, is one more expert for product_batch(), of gate
/// and up as of down.
bool goes_beside(const DeviceTraits& device, const ExpertsForm& experts, const Weights& gate_up,
                 const Weights& down, int64_t pairs, int64_t chosen);

/// What chooses a row's experts.
enum class ChoiceKernel : uint8_t {
  alone,      // choose_experts() of router.h
  with_sort,  // choose_and_sort() of pairs.h, if product_batch() follows, else choose_experts(), later
};
/// After a router's product by that kernel.
Choice<ChoiceKernel> choose_choice(const DeviceTraits& device, ProductKernel router, int64_t rows,
                                   int64_t chosen);

/// What sums up a row's experts (rule 11), k numbers each, where `row` of experts_down does not.
enum class SumKernel : uint8_t {
  combine,  // combine() of router.h
  norm,     // norm_and_round(), where a norm of the sums follows; else combine(), later
};
Choice<SumKernel> choose_sum(const DeviceTraits& device, int64_t k);

enum class RoundKernel : uint8_t {
  plain,  // round_rows()
  held,   // round_held_rows(): a block a row
  warps,  // round_many(): a warp a row
};

/// Why products of so many rows of k numbers do not take them as halves, their weights being `tame`; nothing
/// where they do.
std::string_view against_halves(const DeviceTraits& device, int64_t rows, int64_t k);

/// For rows of k numbers; `halves`: for product_many(), product_mma() and product_batch(), else for
/// product_few() and product_row().
Choice<RoundKernel> choose_rounding(const DeviceTraits& device, int64_t rows, int64_t k, bool halves);

/// What a norm does besides.
struct NormPlan {
  bool held = false;                    // norm_and_round() instead of norm()
  bool planes = false, halves = false;  // the form, if any, that it rounds its result into
  bool rest = false;                    // and what the rounding into halves left, for the router
  std::string_view why;

  bool rounds() const { return planes || halves; }
};
/// `may_route`: whether a router may take the result.
NormPlan plan_norm(const DeviceTraits& device, int64_t rows, int64_t k, bool may_route);

std::string_view name_of(ProductKernel kernel);
std::string_view name_of(ExpertsKernel kernel);
std::string_view name_of(ChoiceKernel kernel);
std::string_view name_of(SumKernel kernel);
std::string_view name_of(RoundKernel kernel);

}  // namespace tercet::cuda
