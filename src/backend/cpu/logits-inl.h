// Whole rows of logits (docs/exactness.md, rule 12).
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/math-inl.h"

namespace tercet::cpu::TERCET_CPU_LEVEL {

inline bool largest(const float* x, int64_t count, float* max) {
  F best = all(x[0]);
  I magnitude = all(0);
  const auto meet = [&](F value) {
    best = larger(best, value);
    magnitude = larger(magnitude, bits_of(value) & all(0x7fffffff));
  };
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) meet(load(x + i));
  if (i < count) meet(load_first(x + i, count - i, x[0]));
  *max = largest_of(best);
  return largest_of(magnitude) < 0x7f800000;
}

inline F mass_of(F x, F max) { return nearest(exp2_of((x - max) * all(kLog2E)) * all(0x1p40F)); }

inline uint64_t mass_sum(const float* x, int64_t count, float max) {
  constexpr int64_t kExact = 16 * 4096;  // values after which a lane may hold 2^52
  const F m = all(max);
  uint64_t total = 0;
  int64_t i = 0;
  while (i + 16 <= count) {
    WideSum sum;
    const int64_t end = i + kExact < count ? i + kExact : count;
    for (; i + 16 <= end; i += 16) sum.add(mass_of(load(x + i), m));
    total += sum.total();
  }
  if (i < count) {
    WideSum sum;
    sum.add(mass_of(load_first(x + i, count - i, scalar_of_bits(0xff800000U)), m));
    total += sum.total();
  }
  return total;
}

inline void log_probabilities(const float* x, int64_t count, float max, float log_mass, float* out) {
  const F m = all(max);
  const F log = all(log_mass);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, (load(x + i) - m) - log);
  if (i < count) store_first(out + i, (load_first(x + i, count - i, 0.0F) - m) - log, count - i);
}

/// Word 0 of Philox4x32-10 with the counter {position, token, 0, 0} (base/philox.h).
inline I philox_word(uint64_t seed, uint32_t position, const I& token) {
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32);
  I c0 = all(static_cast<int32_t>(position));
  I c1 = token;
  I c2 = all(0);
  I c3 = all(0);
  for (int round = 0; round < 10; ++round) {
    I high0, low0, high1, low1;
    multiply_wide(c0, 0xD2511F53U, high0, low0);
    multiply_wide(c2, 0xCD9E8D57U, high1, low1);
    c0 = high1 ^ c1 ^ all(static_cast<int32_t>(k0));
    c1 = low1;
    c2 = high0 ^ c3 ^ all(static_cast<int32_t>(k1));
    c3 = low0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c0;
}

inline F gumbel_noise(uint64_t seed, uint32_t position, const I& token) {
  const I k = shift_right_unsigned<9>(philox_word(seed, position, token));
  const F u = to_float(k + k + all(1)) * all(0x1p-24F);
  const F e = negated(all(kLn2) * log2_of(u));
  return negated(all(kLn2) * log2_of(e));
}

inline int64_t noisy_best(const float* x, int64_t count, uint64_t seed, uint32_t position) {
  // Most tokens are too far below the best for any noise: it is at most 16.64.
  constexpr float kMostNoise = 17.0F;
  const float nothing = scalar_of_bits(0xff800000U);
  float best = nothing;
  int64_t winner = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const F value = i + 16 <= count ? load(x + i) : load_first(x + i, count - i, nothing);
    float lane[16];
    store(lane, value + all(kMostNoise));
    float possible = nothing;
    for (const float v : lane) possible = v > possible ? v : possible;
    if (!(possible > best)) continue;
    store(lane, value + gumbel_noise(seed, position, lanes() + all(static_cast<int32_t>(i))));
    for (int j = 0; j < 16; ++j) {
      if (lane[j] > best) {
        best = lane[j];
        winner = i + j;
      }
    }
  }
  return winner;
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
