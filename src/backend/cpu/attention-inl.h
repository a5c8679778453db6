// Attention over one block of 64 keys, for the query heads that share it (docs/exactness.md, rule 8).
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/math-inl.h"

namespace tercet::cpu::TERCET_CPU_LEVEL {

/// score[h][key] = q·k, exact.
template <int H>
inline void block_scores(const int16_t* queries, const int16_t* keys, int quarters, int32_t (*score)[64]) {
  for (int quarter = 0; quarter < quarters; ++quarter) {
    I dot[H] = {};
    for_halves([&](auto half) {
      constexpr int kHalf = decltype(half)::value;
      const auto* from = reinterpret_cast<const uint8_t*>(keys + quarter * 2048) +
                         kHalf * static_cast<int>(sizeof(Register));
      Wide sum[H] = {};
      for (int pair = 0; pair < 64; ++pair) {
        const Register k = load_register(from + 64 * pair);
        for (int h = 0; h < H; ++h) sum[h] = dot2(sum[h], k, queries + 128 * h + 2 * pair);
      }
      for (int h = 0; h < H; ++h) add_half<kHalf>(dot[h], sum[h]);
    });
    for (int h = 0; h < H; ++h) store(score[h] + 16 * quarter, dot[h]);
  }
}

/// (a₀ + a₁) + (a₂ + a₃), a_t adding values 2t, 2t+1, 8+2t, 8+2t+1, … ascending.
inline float fragment_sum(const float* x) {
  float a[4] = {};
  for (int base = 0; base < 64; base += 8) {
    for (int t = 0; t < 4; ++t) a[t] = a[t] + x[base + 2 * t];
    for (int t = 0; t < 4; ++t) a[t] = a[t] + x[base + 2 * t + 1];
  }
  return (a[0] + a[1]) + (a[2] + a[3]);
}

/// The weights of one head's keys: P = weights·2^(z − 14), and the block's m and l.
struct BlockWeights {
  alignas(64) int16_t weight[64];
  float m;
  float l;
  int z;
};

inline void weigh_keys(const int32_t* score, float query_size, const KeyBlock& block, int visible,
                       BlockWeights& out) {
  const F scale = all(0x1.0527dcp-3F);  // fl(log2(e)/√128)
  const F nothing = float_of_bits(all(static_cast<int32_t>(0xff800000U)));
  F t[4], whole[4];
  F largest = nothing;
  for (int i = 0; i < 4; ++i) {
    t[i] = whole[i] = nothing;
    if (16 * i >= visible) continue;
    const F size = all(query_size) * power_of_two(load_bytes(block.key_exponents + 16 * i));
    const F scaled = ((to_float(load(score + 16 * i)) * all(0x1p-24F)) * size) * scale;
    t[i] = choose(less(lanes(), all(visible - 16 * i)), scaled, nothing);
    whole[i] = nearest(t[i]);
    largest = larger(largest, whole[i]);
  }
  alignas(64) float lane[16];
  store(lane, largest);
  out.m = lane[0];
  for (const float value : lane) out.m = value > out.m ? value : out.m;

  alignas(64) float p[64];         // exp2(t − m)
  alignas(64) float weighted[64];  // p' = p·2^(E of v)
  for (int i = 0; i < 4; ++i) {
    const F below = whole[i] - all(out.m);
    const F power = power_of_two(larger(to_int(below), all(-101)));
    const F value = exp2_of_fraction(t[i] - whole[i]) * power;
    const F kept = choose(less(below, all(-100.0F)), all(0.0F), value);
    store(p + 16 * i, kept);
    store(weighted + 16 * i, kept * power_of_two(load_bytes(block.value_exponents + 16 * i)));
  }
  out.l = fragment_sum(p);
  // The margin of 2^-7 covers the rounding of 64 weights, so that Σ P·v stays exact.
  out.z = ceil_exponent(fragment_sum(weighted) * (1.0F + 0x1p-7F));
  for (int i = 0; i < 4; ++i) {
    store_shorts(out.weight + 16 * i, round_to_units(load(weighted + 16 * i), out.z - 14));
  }
}

/// 2^difference for a whole difference ≤ 0; below 2^-60 it counts as 0.
inline float fold_factor(float difference) {
  return difference < -60.0F ? 0.0F : power_of_two(static_cast<int>(difference));
}

/// How two results enter their fold.
struct FoldFactors {
  float m = 0.0F;
  float into = 0.0F;
  float next = 0.0F;
};

inline FoldFactors fold_factors(const Partial& into, float next_m) {
  const float m = into.m > next_m ? into.m : next_m;
  return {m, fold_factor(into.m - m), fold_factor(next_m - m)};
}

/// o = O of the block, folded into spans[h].
template <int H>
inline void add_values(const BlockWeights* weights, const int16_t* values, int visible, Partial* spans) {
  const int pairs = (visible + 1) / 2;
  FoldFactors factors[H];
  for (int h = 0; h < H; ++h) {
    if (!spans[h].empty) factors[h] = fold_factors(spans[h], weights[h].m);
  }
  for (int eighth = 0; eighth < 8; ++eighth) {
    I dot[H] = {};
    for_halves([&](auto half) {
      constexpr int kHalf = decltype(half)::value;
      const auto* from = reinterpret_cast<const uint8_t*>(values + eighth * 1024) +
                         kHalf * static_cast<int>(sizeof(Register));
      Wide sum[H] = {};
      for (int pair = 0; pair < pairs; ++pair) {
        const Register v = load_register(from + 64 * pair);
        for (int h = 0; h < H; ++h) sum[h] = dot2(sum[h], v, weights[h].weight + 2 * pair);
      }
      for (int h = 0; h < H; ++h) add_half<kHalf>(dot[h], sum[h]);
    });
    for (int h = 0; h < H; ++h) {
      float* o = spans[h].o + 16 * eighth;
      const F block = to_float(dot[h]) * all(power_of_two(weights[h].z - 24));
      store(o, spans[h].empty ? block : load(o) * all(factors[h].into) + block * all(factors[h].next));
    }
  }
  for (int h = 0; h < H; ++h) {
    Partial& span = spans[h];
    span.l = span.empty ? weights[h].l : span.l * factors[h].into + weights[h].l * factors[h].next;
    span.m = span.empty ? weights[h].m : factors[h].m;
    span.empty = false;
  }
}

template <int H>
inline void attend_heads(const int16_t* queries, const float* query_size, int heads, const KeyBlock& block,
                         int visible, Partial* spans) {
  for (; heads >= H; heads -= H, queries += 128 * H, query_size += H, spans += H) {
    alignas(64) int32_t score[H][64];
    BlockWeights weights[H];
    block_scores<H>(queries, block.keys, (visible + 15) / 16, score);
    for (int h = 0; h < H; ++h) weigh_keys(score[h], query_size[h], block, visible, weights[h]);
    add_values<H>(weights, block.values, visible, spans);
  }
  if constexpr (H > 1) attend_heads<H / 2>(queries, query_size, heads, block, visible, spans);
}

inline void attend_block(const int16_t* queries, const float* query_size, int heads, const KeyBlock& block,
                         int visible, Partial* spans) {
  attend_heads<kHeadsAtOnce>(queries, query_size, heads, block, visible, spans);
}

inline void fold(Partial* into, const Partial* next) {
  if (next->empty) return;
  if (into->empty) {
    __builtin_memcpy(into, next, sizeof *into);
    return;
  }
  const FoldFactors f = fold_factors(*into, next->m);
  for (int64_t d = 0; d < 128; d += 16) {
    store(into->o + d, load(into->o + d) * all(f.into) + load(next->o + d) * all(f.next));
  }
  into->l = into->l * f.into + next->l * f.next;
  into->m = f.m;
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
