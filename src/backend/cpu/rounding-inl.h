// Rows and heads as whole numbers (docs/exactness.md, rules 0, 1 and 8).
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/math-inl.h"

namespace tercet::cpu::TERCET_CPU_LEVEL {

/// max|x| as bits, so that NaN counts as larger than all. `count` is a multiple of 16.
inline float largest_magnitude(const float* x, int64_t count) {
  I largest = all(0);
  for (int64_t i = 0; i < count; i += 16) largest = larger(largest, bits_of(load(x + i)) & all(0x7fffffff));
  return scalar_of_bits(static_cast<uint32_t>(largest_of(largest)));
}

/// ‖x‖·(1 + 2^-9) for 32, 64 or 128 values whose largest magnitude has the ceiling exponent e: the margin
/// covers what the norm's own rounding and the rounding of the values can add.
inline float padded_norm(const float* x, int64_t count, int e) {
  const F scale = all(power_of_two(-e));
  F square[8];
  for (int64_t i = 0; i < count / 16; ++i) {
    const F scaled = load(x + 16 * i) * scale;
    square[i] = fma(scaled, scaled, all(0.0F));
  }
  for (int64_t step = count / 32; step >= 1; step /= 2) {
    for (int64_t i = 0; i < step; ++i) square[i] = square[i] + square[i + step];
  }
  return power_of_two(e) * __builtin_sqrtf(tree_sum(square[0])) * (1.0F + 0x1p-9F);
}

/// The exponent of one group, or above kMaxExponent where it fails.
inline int group_exponent(const float* x, int64_t count, bool by_norm) {
  const float magnitude = largest_magnitude(x, count);
  const int e = ceil_exponent(magnitude);
  if (!by_norm || e > kMaxExponent) return e;
  return ceil_exponent(padded_norm(x, count, e));
}

inline void zero_row(const TileLayout& w, uint8_t* numbers, float* unit, float* sum, float* rest) {
  const auto k = static_cast<uint64_t>(w.groups * w.group);
  __builtin_memset(numbers, 0, 2 * k);
  if (rest != nullptr) __builtin_memset(rest, 0, 4 * k);
  for (int64_t g = 0; g < w.groups; ++g) {
    unit[g] = 1.0F;
    sum[g] = 0.0F;
  }
}

inline bool round_row(const float* x, const TileLayout& w, uint8_t* numbers, float* unit, float* sum,
                      float* rest) {
  const bool floats = w.bits == 0;
  const int bits_below = floats ? 12 : 13;
  for (int64_t begin = 0; begin < w.groups; begin += w.groups_in_leaf) {
    const int64_t end = begin + w.groups_in_leaf;
    int largest = kMinExponent;
    for (int64_t g = begin; g < end; ++g) {
      const int e = group_exponent(x + g * w.group, w.group, floats);
      if (e > kMaxExponent) {
        zero_row(w, numbers, unit, sum, rest);
        return false;
      }
      largest = e > largest ? e : largest;
      sum[g] = static_cast<float>(e);  // until the leaf's largest is known
    }
    for (int64_t g = begin; g < end; ++g) {
      const int own = static_cast<int>(sum[g]);
      const int step = (own > largest - 16 ? own : largest - 16) - bits_below;
      const F unit_size = all(power_of_two(step));
      I total = all(0);
      for (int64_t i = g * w.group; i < (g + 1) * w.group; i += 16) {
        const F value = load(x + i);
        const I n = round_to_units(value, step);
        total = total + n;
        if (floats) {
          store_shorts(reinterpret_cast<int16_t*>(numbers + 2 * i), n);
        } else {
          store_planes(numbers + 2 * i, shift_right<7>(n), n & all(127));
        }
        if (rest != nullptr) store(rest + i, value - to_float(n) * unit_size);
      }
      unit[g] = power_of_two(step);
      sum[g] = static_cast<float>(sum_of(total));
    }
  }
  return true;
}

inline bool round_head(const float* x, bool by_norm, int16_t* numbers, int8_t* exponent) {
  const int e = group_exponent(x, 128, by_norm);
  const bool finite = e <= kMaxExponent;
  *exponent = static_cast<int8_t>(finite ? e : 0);
  for (int64_t i = 0; i < 128; i += 16) {
    store_shorts(numbers + i, finite ? round_to_units(load(x + i), e - (by_norm ? 12 : 10)) : all(0));
  }
  return finite;
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
