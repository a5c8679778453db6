#include "backend/cuda/select/table.h"

#include <functional>

#include "backend/cuda/select/attention.h"
#include "backend/cuda/select/products.h"
#include "backend/cuda/select/step.h"

namespace tercet::cuda {
namespace {

constexpr int64_t kHidden = 4096, kHeads = 64, kKvHeads = 8, kInter = 1536, kChosen = 8;
constexpr int64_t kHeadNumbers = 128, kLeaves = 8;
constexpr int32_t kExperts = 192;

/// Weights [n, kHidden or kInter] in one plane, or two for the router's 8 bits.
Weights weights(int64_t n, int64_t k, int32_t planes, int32_t leaves) {
  Weights out;
  out.n = static_cast<int32_t>(n);
  out.k = static_cast<int32_t>(k);
  out.group = kBlock;
  out.planes = planes;
  out.leaves = leaves;
  return out;
}

struct Named {
  std::string_view kernel, why;

  template <class Kernel>
  static Named of(const Choice<Kernel>& choice) {
    return {name_of(choice.kernel), choice.why};
  }
};

}  // namespace

std::vector<TableLine> kernel_table(const DeviceTraits& device, int64_t most) {
  const Weights square = weights(kHidden, kHidden, 1, 8);
  const Weights router = weights(kExperts, kHidden, 2, 8);
  const ExpertsForm experts{weights(2 * kInter, kHidden, 1, 8), weights(kHidden, kInter, 1, 2), true, true,
                            kExperts};
  const auto norm_kernel = [](const NormPlan& plan) -> std::string_view {
    if (!plan.rounds()) return "norm";
    if (!plan.held) return "norm, into planes";
    if (!plan.halves) return "norm_and_round, into planes";
    if (plan.rest) return "norm_and_round, into halves, twice";
    return "norm_and_round, into halves";
  };
  const std::pair<std::string_view, std::function<Named(int64_t)>> operations[] = {
      {"step", [&](int64_t rows) { return Named::of(choose_step(device, rows)); }},
      {"norm",
       [&](int64_t rows) {
         const NormPlan plan = plan_norm(device, rows, kHidden, false);
         return Named{norm_kernel(plan), plan.why};
       }},
      {"norm before a router",
       [&](int64_t rows) {
         const NormPlan plan = plan_norm(device, rows, kHidden, true);
         return Named{norm_kernel(plan), plan.why};
       }},
      {"linear", [&](int64_t rows) { return Named::of(choose_product(device, square, rows, true)); }},
      {"attention, one sequence",
       [&](int64_t rows) { return Named::of(choose_attention(device, kHeads, kKvHeads, rows)); }},
      {"fold, a row a sequence",
       [&](int64_t rows) -> Named {
         const auto choice = choose_attention(device, kHeads, kKvHeads, 1);
         if (choice.kernel != AttentionKernel::alone) return {"none", choice.why};
         return Named::of(choose_fold(device, true, rows, kHeads * kHeadNumbers, kLeaves));
       }},
      {"router", [&](int64_t rows) { return Named::of(choose_router(device, router, rows, true)); }},
      {"choice of experts",
       [&](int64_t rows) {
         const ProductKernel kernel = choose_router(device, router, rows, true).kernel;
         return Named::of(choose_choice(device, kernel, rows, kChosen));
       }},
      {"experts' gate and up",
       [&](int64_t rows) { return Named::of(choose_experts_gate_up(device, experts, rows * kChosen)); }},
      {"experts' down",
       [&](int64_t rows) {
         return Named::of(choose_experts_down(device, experts, rows * kChosen, kChosen));
       }},
      {"experts' sum",
       [&](int64_t rows) {
         const auto down = choose_experts_down(device, experts, rows * kChosen, kChosen);
         if (down.kernel == ExpertsKernel::row) return Named{"down_few", down.why};
         return Named::of(choose_sum(device, kHidden));
       }},
  };
  std::vector<TableLine> lines;
  for (const auto& [operation, choose] : operations) {
    for (int64_t rows = 1; rows <= most; ++rows) {
      const Named named = choose(rows);
      const bool same = rows > 1 && lines.back().kernel == named.kernel && lines.back().why == named.why;
      if (!same) lines.push_back({operation, rows, rows, named.kernel, named.why});
      lines.back().to = rows;
    }
  }
  return lines;
}

}  // namespace tercet::cuda
