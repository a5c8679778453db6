// The router's choice (docs/exactness.md, rule 10).
#pragma once

#include <cstdint>
#include <span>

#include "ops/ops.h"

namespace tercet::reference {

/// From a row's logits to its `chosen` experts in ascending index, with their weights.
void choose_experts(std::span<const float> logits, std::span<const float> bias, const RouterParams& params,
                    std::span<int32_t> experts, std::span<float> weights);

}  // namespace tercet::reference
