#include "backend/reference/router.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/exact_math.h"

namespace tercet::reference {

void choose_experts(std::span<const float> logits, std::span<const float> bias, const RouterParams& params,
                    std::span<int32_t> experts, std::span<float> weights) {
  const auto chosen = static_cast<size_t>(params.chosen);
  std::vector<float> score(logits.size());
  std::vector<float> biased(logits.size());
  for (size_t e = 0; e < logits.size(); ++e) {
    score[e] = sigmoid(logits[e]);
    biased[e] = score[e] + bias[e];
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)];
  });
  float sum = 0.0F;
  for (size_t j = 0; j < chosen; ++j) sum = sum + score[static_cast<size_t>(order[j])];
  sum = sum + 1e-20F;
  std::sort(order.begin(), order.begin() + params.chosen);
  for (size_t j = 0; j < chosen; ++j) {
    const float own = score[static_cast<size_t>(order[j])];
    experts[j] = order[j];
    weights[j] = (params.normalise ? own / sum : own) * params.scaling;
  }
}

}  // namespace tercet::reference
