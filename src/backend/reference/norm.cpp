#include "backend/reference/norm.h"

#include "backend/reference/rounding.h"
#include "ops/exact_math.h"

namespace tercet::reference {

void rms_norm(std::span<const float> x, std::span<const float> weight, float eps, std::span<float> h) {
  const float mean = lane_sum_of_squares(x) / static_cast<float>(x.size());
  const float r = 1.0F / sqrt_(mean + eps);
  for (size_t i = 0; i < x.size(); ++i) h[i] = (x[i] * r) * weight[i];
}

}  // namespace tercet::reference
