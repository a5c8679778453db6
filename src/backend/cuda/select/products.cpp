#include "backend/cuda/select/products.h"

#include <algorithm>

namespace tercet::cuda {
namespace {

/// Up to here every pair of a row and an expert reads its expert's weights by itself.
constexpr int64_t kLonePairs = 32;
/// From here on products take rows as halves.
constexpr int64_t kManyRows = 9;
constexpr int64_t kManyRowsByWgmma = 5;
/// Up to so many pairs an expert, on average, they go to product_batch().
constexpr int64_t kBatchAverage = 12;
/// Rows, and pairs, up to which the block that chooses last sorts all.
constexpr int64_t kChoiceRows = 128;
constexpr int64_t kChoicePairs = 2048;
/// From here on a warp rounds a row, below a block.
constexpr int64_t kWarpRows = 1024;

/// Of shared memory that a block of product_row() and down_few() takes at most.
constexpr int64_t kRowShared = 200 << 10;
/// Of shared memory that each block has for the system.
constexpr int64_t kSystemShared = 1 << 10;
/// Of shared memory that norm_and_round() and round_held_rows() take besides the row.
constexpr int64_t kHeldScratch = 6 << 10;

constexpr std::string_view kPlainAsked = "only the plain kernels are to run";
constexpr std::string_view kNoFragments = "weights that are no fragments for tensor cores";
constexpr std::string_view kFloats = "float weights: whole numbers of 11 bits are fp16 numbers";
constexpr std::string_view kFewEnough = "all of a block's weights fit into shared memory at once";
constexpr std::string_view kTensorBound = "enough rows for wgmma";
constexpr std::string_view kNoWgmma = "enough rows to share the weights; this device has no wgmma";
constexpr std::string_view kTooFew = "too few rows for halves";
constexpr std::string_view kWild = "scales of a size for which sums of halves could overflow";
constexpr std::string_view kTooManyBytes = "more bytes of rows than kernels of many rows can address";

int64_t many_rows(const DeviceTraits& device) { return device.wgmma() ? kManyRowsByWgmma : kManyRows; }
int64_t row_limit(const DeviceTraits& device) { return std::min(kRowShared, device.shared_bytes); }

bool row_fits(const DeviceTraits& device, const Weights& w, int64_t rows, bool swiglu) {
  return rows <= kRowRows && static_cast<int64_t>(row_shared(w, rows, swiglu)) <= row_limit(device);
}

/// Why not halves, or nothing where products take so many rows, of which `entering` enter, as such.
std::string_view against_many(const DeviceTraits& device, int64_t rows, int64_t entering, int64_t k,
                              bool tame) {
  if (device.plain) return kPlainAsked;
  if (rows < many_rows(device)) return kTooFew;
  if (!tame) return kWild;
  return 2 * entering * k < kManyBytes ? std::string_view() : kTooManyBytes;
}

/// The best for weights in fragments: `entering` of `rows` rows' forms.
Choice<ProductKernel> choose_fast(const DeviceTraits& device, const Weights& weights, int64_t rows,
                                  int64_t entering, bool tame, bool swiglu) {
  const std::string_view against = against_many(device, rows, entering, weights.k, tame);
  if (against.empty() && device.wgmma()) return {ProductKernel::many, kTensorBound};
  if (against.empty()) return {ProductKernel::mma, kNoWgmma};
  if (row_fits(device, weights, entering, swiglu)) return {ProductKernel::row, kFewEnough};
  return {ProductKernel::few, against};
}

}  // namespace

Choice<ProductKernel> choose_any_form(const DeviceTraits& device) {
  if (device.plain) return {ProductKernel::plain, kPlainAsked};
  return {ProductKernel::warps, kNoFragments};
}

Choice<ProductKernel> choose_product(const DeviceTraits& device, const Weights& weights, int64_t rows,
                                     bool tame, bool swiglu) {
  if (!device.plain && floats(weights)) return {ProductKernel::floats, kFloats};
  if (device.plain || !fragments(weights)) return choose_any_form(device);
  return choose_fast(device, weights, rows, rows, tame, swiglu);
}

Choice<ProductKernel> choose_router(const DeviceTraits& device, const Weights& weights, int64_t rows,
                                    bool tame) {
  if (!device.plain && floats(weights)) return {ProductKernel::floats, kFloats};
  if (device.plain || !fragments(weights)) return choose_any_form(device);
  return choose_fast(device, weights, rows, 2 * rows, tame, false);
}

bool swiglu_inside(const DeviceTraits& device, const Weights& weights, size_t parts, int64_t inter) {
  return !device.plain && parts == 1 && (fragments(weights) || floats(weights)) && inter % kTile == 0;
}

namespace {

bool all_floats(const DeviceTraits& device, const ExpertsForm& experts) {
  return !device.plain && experts.alike && floats(experts.gate_up) && floats(experts.down);
}

/// Why the experts' products are those of any form, or nothing.
std::string_view against_fast(const DeviceTraits& device, const ExpertsForm& experts) {
  if (device.plain) return kPlainAsked;
  if (!experts.alike) return "experts of unlike forms";
  return fragments(experts.gate_up) && fragments(experts.down) ? std::string_view() : kNoFragments;
}

bool batch_fits(const DeviceTraits& device, const Weights& weights) {
  return static_cast<int64_t>(batch_shared(weights, kBatchPairs)) <= device.shared_bytes;
}

Choice<ExpertsKernel> choose_sorted(const DeviceTraits& device, const ExpertsForm& experts, int64_t pairs,
                                    int64_t k) {
  const std::string_view against = against_many(device, pairs, pairs, k, experts.tame);
  if (!against.empty()) return {ExpertsKernel::sorted_few, against};
  const ExpertsKernel many = device.wgmma() ? ExpertsKernel::sorted_many : ExpertsKernel::sorted_mma;
  if (pairs > kBatchAverage * std::min(pairs, experts.count)) {
    return {many, "pairs enough of an expert to share its weights' way through shared memory"};
  }
  if (!batch_fits(device, experts.gate_up) || !batch_fits(device, experts.down)) {
    return {many, "eight rows do not fit into shared memory at once"};
  }
  return {ExpertsKernel::sorted_batch, "few pairs of an expert: its weights go straight into registers"};
}

/// Whether norm_and_round() can hold rows of k numbers.
bool norm_holds(const DeviceTraits& device, int64_t k) {
  return k % kBlock == 0 && k <= kHeldRow && k * 4 + kHeldScratch <= device.shared_bytes;
}

}  // namespace

int batch_warps(const DeviceTraits& device, const Weights& weights) {
  // More, smaller blocks leave less unused when the last ones run.
  const auto shared = static_cast<int64_t>(batch_shared(weights, kBatchPairs)) + kSystemShared;
  return kBatchBlocks * shared <= device.shared_bytes + kSystemShared ? 4 : 8;
}

Choice<ExpertsKernel> choose_experts_gate_up(const DeviceTraits& device, const ExpertsForm& experts,
                                             int64_t pairs) {
  if (all_floats(device, experts)) return {ExpertsKernel::sorted_floats, kFloats};
  const std::string_view against = against_fast(device, experts);
  if (!against.empty()) return {ExpertsKernel::any_form, against};
  if (pairs > kLonePairs) return choose_sorted(device, experts, pairs, experts.gate_up.k);
  if (row_fits(device, experts.gate_up, 1, true)) return {ExpertsKernel::row, kFewEnough};
  return {ExpertsKernel::few, "a block's weights do not fit into shared memory at once"};
}

Choice<ExpertsKernel> choose_experts_down(const DeviceTraits& device, const ExpertsForm& experts,
                                          int64_t pairs, int64_t chosen) {
  if (all_floats(device, experts)) return {ExpertsKernel::sorted_floats, kFloats};
  const std::string_view against = against_fast(device, experts);
  if (!against.empty()) return {ExpertsKernel::any_form, against};
  const bool fits =
      chosen <= kFewChosen && static_cast<int64_t>(down_shared(experts.down, chosen)) <= row_limit(device);
  if (pairs <= kLonePairs && fits)
    return {ExpertsKernel::row, "a row's experts fit into shared memory at once"};
  return choose_sorted(device, experts, pairs, experts.down.k);
}

bool goes_beside(const DeviceTraits& device, const ExpertsForm& experts, const Weights& gate_up,
                 const Weights& down, int64_t pairs, int64_t chosen) {
  const auto alike = [](const Weights& a, const Weights& b) {
    return a.n == b.n && a.k == b.k && a.group == b.group && a.planes == b.planes && a.wide == b.wide &&
           a.leaves == b.leaves;
  };
  return alike(experts.gate_up, gate_up) && alike(experts.down, down) &&
         choose_experts_gate_up(device, experts, pairs).kernel == ExpertsKernel::sorted_batch &&
         choose_experts_down(device, experts, pairs, chosen).kernel == ExpertsKernel::sorted_batch;
}

Choice<ChoiceKernel> choose_choice(const DeviceTraits& device, ProductKernel router, int64_t rows,
                                   int64_t chosen) {
  if (device.plain) return {ChoiceKernel::alone, kPlainAsked};
  if (router != ProductKernel::many)
    return {ChoiceKernel::alone, "no product of many rows by wgmma goes before"};
  if (rows > kChoiceRows || rows * chosen > kChoicePairs) {
    return {ChoiceKernel::alone, "many pairs for one block to sort"};
  }
  return {ChoiceKernel::with_sort, "few pairs: a block can sort them, once all are there"};
}

Choice<SumKernel> choose_sum(const DeviceTraits& device, int64_t k) {
  if (device.plain) return {SumKernel::combine, kPlainAsked};
  if (!norm_holds(device, k)) return {SumKernel::combine, "a row too long for the norm that follows"};
  return {SumKernel::norm, "the norm that follows has to read the sums anyway"};
}

std::string_view against_halves(const DeviceTraits& device, int64_t rows, int64_t k) {
  return against_many(device, rows, rows, k, true);
}

Choice<RoundKernel> choose_rounding(const DeviceTraits& device, int64_t rows, int64_t k, bool halves) {
  const bool holds = k <= kHeldRow && k * 4 + kHeldScratch <= device.shared_bytes;
  if (halves && rows >= kWarpRows) return {RoundKernel::warps, "rows enough for a warp each"};
  if (halves && !holds) return {RoundKernel::warps, "a row too long for shared memory"};
  if (holds) return {RoundKernel::held, "a row fits into shared memory"};
  return {RoundKernel::plain, "a row too long for shared memory"};
}

NormPlan plan_norm(const DeviceTraits& device, int64_t rows, int64_t k, bool may_route) {
  NormPlan plan;
  plan.why = kPlainAsked;
  if (device.plain) return plan;
  plan.why = "no product takes rows of such a length rounded";
  if (k % kBlock != 0 || k / kBlock > kMaxGroups) return plan;
  plan.held = norm_holds(device, k);
  plan.halves = plan.held && rows >= many_rows(device);
  plan.planes = !plan.halves;
  plan.rest = may_route && plan.halves && 4 * rows * k < kManyBytes;
  plan.why = !plan.halves ? "products of few rows follow"
             : plan.rest  ? "products of many rows follow, and a kernel for the router's is saved"
                          : "products of many rows follow";
  return plan;
}

std::string_view name_of(ProductKernel kernel) {
  constexpr std::string_view kNames[] = {"product",      "product_warps", "product_row",   "product_few",
                                         "product_many", "product_mma",   "product_floats"};
  return kNames[static_cast<size_t>(kernel)];
}

std::string_view name_of(ExpertsKernel kernel) {
  constexpr std::string_view kNames[] = {"product or product_warps",
                                         "product_row",
                                         "product_few",
                                         "product_few, sorted pairs",
                                         "product_batch, sorted pairs",
                                         "product_many, sorted pairs",
                                         "product_mma, sorted pairs",
                                         "product_floats, sorted pairs"};
  return kNames[static_cast<size_t>(kernel)];
}

std::string_view name_of(ChoiceKernel kernel) {
  return kernel == ChoiceKernel::alone ? "choose_experts" : "choose_and_sort";
}

std::string_view name_of(SumKernel kernel) {
  return kernel == SumKernel::combine ? "combine" : "norm_and_round";
}

std::string_view name_of(RoundKernel kernel) {
  constexpr std::string_view kNames[] = {"round_rows", "round_held_rows", "round_many"};
  return kNames[static_cast<size_t>(kernel)];
}

}  // namespace tercet::cuda
