// Rotary position embedding (docs/exactness.md, rule 7).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/exact_math.h"

namespace tercet::reference {

using RopeFrequencies = std::array<float, 64>;

RopeFrequencies rope_frequencies(double theta);

/// cos and sin of fl(position·inv_i).
std::array<SinCos, 64> rope_angles(const RopeFrequencies& frequencies, int32_t position);

/// Rotates the pairs (i, i + 64) of one head [128] in place.
void rope(std::span<float> head, const std::array<SinCos, 64>& angles);

}  // namespace tercet::reference
