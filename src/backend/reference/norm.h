// RMSNorm and the sum before it (docs/exactness.md, rules 5 and 6).
#pragma once

#include <span>

namespace tercet::reference {

/// h = fl(fl(x·r)·w), r = 1 ÷ √(lane sum of x² ÷ K + eps). x and h may be the same.
void rms_norm(std::span<const float> x, std::span<const float> weight, float eps, std::span<float> h);

}  // namespace tercet::reference
