// What happens to rows between products (docs/exactness.md, rules 5 to 7, 9 and 11).
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/math-inl.h"

namespace tercet::cpu::TERCET_CPU_LEVEL {

/// f(chunk of 16, its index) over count values, the last chunk padded with zeros and stored in part.
template <class Function>
inline void map(int64_t count, float* out, Function f) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, f([i](const float* p) { return load(p + i); }));
  if (i == count) return;
  const int64_t rest = count - i;
  store_first(out + i, f([i, rest](const float* p) { return load_first(p + i, rest, 0.0F); }), rest);
}

/// Σ x² in the order of rule 5.
inline float lane_sum_of_squares(const float* x, int64_t k) {
  F lane[16];
  // Four chains at a time: enough to hide the latency of fma, few enough for 16 registers.
  for (int64_t first = 0; first < 16; first += 4) {
    F sum[4];
    for (F& s : sum) s = all(0.0F);
    for (int64_t base = 16 * first; base < k; base += 256) {
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t at = base + 16 * j;
        if (at >= k) break;
        const F value = at + 16 <= k ? load(x + at) : load_first(x + at, k - at, 0.0F);
        sum[j] = fma(value, value, sum[j]);
      }
    }
    for (int64_t j = 0; j < 4; ++j) lane[first + j] = sum[j];
  }
  for (int64_t step = 8; step >= 1; step /= 2) {
    for (int64_t j = 0; j < step; ++j) lane[j] = lane[j] + lane[j + step];
  }
  return tree_sum(lane[0]);
}

/// The norm of a head: no lane has more than one value.
inline void norm_head(const float* x, const float* weight, float eps, float* h) {
  F value[8], lane[8];
  for (int64_t i = 0; i < 8; ++i) {
    value[i] = load(x + 16 * i);
    lane[i] = fma(value[i], value[i], all(0.0F));
  }
  for (int64_t i = 0; i < 4; ++i) lane[i] = lane[i] + lane[i + 4];
  for (int64_t i = 0; i < 2; ++i) lane[i] = lane[i] + lane[i + 2];
  const F r = all(1.0F / __builtin_sqrtf(tree_sum(lane[0] + lane[1]) / 128.0F + eps));
  for (int64_t i = 0; i < 8; ++i) store(h + 16 * i, (value[i] * r) * load(weight + 16 * i));
}

inline void rms_norm(const float* x, const float* weight, int64_t k, float eps, float* h) {
  if (k == 128) return norm_head(x, weight, eps, h);
  const float mean = lane_sum_of_squares(x, k) / static_cast<float>(k);
  const F r = all(1.0F / __builtin_sqrtf(mean + eps));
  map(k, h, [&](auto at) { return (at(x) * r) * at(weight); });
}

inline void rope(float* head, const float* cosines, const float* sines) {
  for (int64_t i = 0; i < 64; i += 16) {
    const F a = load(head + i);
    const F b = load(head + 64 + i);
    const F c = load(cosines + i);
    const F s = load(sines + i);
    store(head + i, fma(negated(b), s, a * c));
    store(head + 64 + i, fma(a, s, b * c));
  }
}

inline void add(float* x, const float* z, int64_t count) {
  map(count, x, [&](auto at) { return at(x) + at(z); });
}

inline void add_product(float* z, float weight, const float* y, int64_t count) {
  const F w = all(weight);
  map(count, z, [&](auto at) { return fma(w, at(y), at(z)); });
}

inline void divide(const float* x, float by, int64_t count, float* y) {
  const F divisor = all(by);
  map(count, y, [&](auto at) { return at(x) / divisor; });
}

inline void swiglu(const float* gate, const float* up, int64_t count, float* a) {
  map(count, a, [&](auto at) {
    const F g = at(gate);
    return (g * sigmoid_of(g)) * at(up);
  });
}

inline void sigmoid(const float* x, int64_t count, float* y) {
  map(count, y, [&](auto at) { return sigmoid_of(at(x)); });
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
