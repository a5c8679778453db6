#include "backend/reference/rope.h"

namespace tercet::reference {

RopeFrequencies rope_frequencies(double theta) {
  RopeFrequencies frequencies;
  for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = rope_frequency(theta, static_cast<int>(i));
  return frequencies;
}

std::array<SinCos, 64> rope_angles(const RopeFrequencies& frequencies, int32_t position) {
  std::array<SinCos, 64> angles;
  for (size_t i = 0; i < angles.size(); ++i)
    angles[i] = sin_cos(static_cast<float>(position) * frequencies[i]);
  return angles;
}

void rope(std::span<float> head, const std::array<SinCos, 64>& angles) {
  for (size_t i = 0; i < 64; ++i) {
    const float a = head[i];
    const float b = head[i + 64];
    const auto [s, c] = angles[i];
    head[i] = fma_(-b, s, a * c);
    head[i + 64] = fma_(a, s, b * c);
  }
}

}  // namespace tercet::reference
