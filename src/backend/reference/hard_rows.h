// Rows for tests and start-up checks: random ones, and those on which roundings differ.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/philox.h"

namespace tercet::reference {

/// A uniform number in [−1, 1).
inline float uniform(uint64_t key, uint32_t index) {
  return static_cast<float>(static_cast<int32_t>(philox4x32(key, {index, 0, 0, 0})[0])) * 0x1p-31F;
}

/// Random rows of several sizes, rows that mix magnitudes from 2^-30 to 2^12, and the extremes of a group:
/// all values at a power of two, just above it, at a tie, alternating in sign, one large among tiny ones.
inline std::vector<std::vector<float>> hard_rows(size_t k) {
  std::vector<std::vector<float>> rows;
  const auto make = [&](auto value) {
    std::vector<float> x(k);
    for (size_t i = 0; i < k; ++i) x[i] = value(static_cast<uint32_t>(i));
    rows.push_back(x);
  };
  for (const float scale : {1.0F, 0x1p-40F, 0x1p30F}) make([&](uint32_t i) { return scale * uniform(1, i); });
  for (uint64_t key = 2; key < 5; ++key) {
    make([&](uint32_t i) {
      return std::ldexp(uniform(key, i), static_cast<int>(philox4x32(key, {i, 1, 0, 0})[0] % 43) - 30);
    });
  }
  make([](uint32_t) { return 1.0F; });
  make([](uint32_t) { return 1.0F + 0x1p-23F; });
  make([](uint32_t) { return 2.0F - 0x1p-23F; });
  make([](uint32_t i) { return (i % 2 == 0 ? 1.0F : -1.0F) * (1.0F + 0x1p-11F); });
  make([](uint32_t i) { return (static_cast<float>(i % 8192) + 0.5F) * 0x1p-13F; });
  make([](uint32_t i) { return i % 64 == 5 ? 1000.0F : 0x1p-20F * uniform(9, i); });
  make([](uint32_t i) { return i % 2 == 0 ? 0.0F : -0.0F; });
  return rows;
}

}  // namespace tercet::reference
