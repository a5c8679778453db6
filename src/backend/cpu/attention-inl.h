// Attention over one block of 64 keys, for the query heads that share it (docs/exactness.md, rule 8).
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/math-inl.h"

namespace tercet::cpu::TERCET_CPU_LEVEL {

// Keys and values of a block are read once, in order. While the keys are read the values are asked for, and
// with the values the next block's keys: so the memory works while the processor does.

/// Chains of sums a head: a chain waits for its own last sum.
template <int H>
inline constexpr int kChainsOfHead = H >= kSumsAtOnce      ? 1
                                     : kSumsAtOnce / H < 4 ? kSumsAtOnce / H
                                                           : 4;

/// d[h] += Σ over pairs of vectors[pair] times numbers[stride·h + 2·pair …], exact. Asks for ahead(pair) by
/// the way. `pairs` is a multiple of 4.
template <int H, class Ahead>
[[gnu::always_inline]] inline void pair_sums(const int16_t* vectors, const int16_t* numbers, int64_t stride,
                                             int64_t pairs, Ahead ahead, I (&d)[H]) {
  constexpr int kChains = kChainsOfHead<H>;
  for_halves([&](auto half) __attribute__((always_inline)) {
    constexpr int kHalf = decltype(half)::value;
    const auto* from = reinterpret_cast<const uint8_t*>(vectors) + kHalf * static_cast<int>(sizeof(Register));
    Wide sum[H][kChains] = {};
    for (int64_t begin = 0; begin < pairs; begin += 4) {
      for_fields<4>([&](auto i) __attribute__((always_inline)) {
        const int64_t pair = begin + i.value;
        const Register v = load_register(from + 64 * pair);
        if (kHalf == 0) prefetch(ahead(pair));
        for_fields<H>([&](auto h) __attribute__((always_inline)) {
          Wide& chain = sum[h.value][i.value % kChains];
          chain = dot2(chain, v, numbers + stride * h.value + 2 * pair);
        });
      });
    }
    for_fields<H>([&](auto h) __attribute__((always_inline)) {
      for_fields<kChains>([&](auto c) __attribute__((always_inline)) {
        add_half<kHalf>(d[h.value], sum[h.value][c.value]);
      });
    });
  });
}

/// score[h][key] = q·k, exact.
template <int H>
inline void block_scores(const int16_t* queries, const KeyBlock& block, int quarters, int32_t (*score)[64]) {
  for (int quarter = 0; quarter < quarters; ++quarter) {
    I dot[H] = {};
    // Of the values, the 16 positions' part of each eighth.
    const auto ahead = [&](int64_t pair) {
      return block.values + pair / 8 * 1024 + (quarter * 8 + pair % 8) * 32;
    };
    pair_sums<H>(block.keys + quarter * 2048, queries, 128, 64, ahead, dot);
    for (int h = 0; h < H; ++h) store(score[h] + 16 * quarter, dot[h]);
  }
}

/// (a₀ + a₁) + (a₂ + a₃) of each head, a_t adding values 2t, 2t+1, 8+2t, 8+2t+1, … ascending. A chain waits
/// for its own last sum, so the heads' chains run side by side.
template <int H>
inline void fragment_sums(const float (*x)[64], float* sum) {
  using Four = float __attribute__((vector_size(16)));
  Four a[H] = {};
  for (int base = 0; base < 64; base += 8) {
    for (int h = 0; h < H; ++h) {
      Four low, high;
      __builtin_memcpy(&low, x[h] + base, 16);
      __builtin_memcpy(&high, x[h] + base + 4, 16);
      a[h] = a[h] + __builtin_shufflevector(low, high, 0, 2, 4, 6);
      a[h] = a[h] + __builtin_shufflevector(low, high, 1, 3, 5, 7);
    }
  }
  for (int h = 0; h < H; ++h) sum[h] = (a[h][0] + a[h][1]) + (a[h][2] + a[h][3]);
}

/// The weights of H heads' keys: P = weight·2^(z − 14), and the block's m and l.
template <int H>
struct BlockWeights {
  alignas(64) int16_t weight[H][64];
  float m[H];
  float l[H];
  int z[H];
};

/// p = exp2(t − m) and p' = p·2^(E of v) of one head, from its scores; returns m.
inline float weigh_keys(const int32_t* score, float query_size, const KeyBlock& block, int visible, float* p,
                        float* weighted) {
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
  const float m = largest_of(largest);
  for (int i = 0; i < 4; ++i) {
    const F below = whole[i] - all(m);
    const F power = power_of_two(larger(to_int(below), all(-101)));
    const F value = exp2_of_fraction(t[i] - whole[i]) * power;
    const F kept = choose(less(below, all(-100.0F)), all(0.0F), value);
    store(p + 16 * i, kept);
    store(weighted + 16 * i, kept * power_of_two(load_bytes(block.value_exponents + 16 * i)));
  }
  return m;
}

template <int H>
inline void block_weights(const int32_t (*score)[64], const float* query_size, const KeyBlock& block,
                          int visible, BlockWeights<H>& out) {
  alignas(64) float p[H][64];
  alignas(64) float weighted[H][64];
  float mass[H];
  for (int h = 0; h < H; ++h) {
    out.m[h] = weigh_keys(score[h], query_size[h], block, visible, p[h], weighted[h]);
  }
  fragment_sums<H>(p, out.l);
  fragment_sums<H>(weighted, mass);
  for (int h = 0; h < H; ++h) {
    // The margin of 2^-7 covers the rounding of 64 weights, so that Σ P·v stays exact.
    out.z[h] = ceil_exponent(mass[h] * (1.0F + 0x1p-7F));
    for (int i = 0; i < 4; ++i) {
      store_shorts(out.weight[h] + 16 * i, round_to_units(load(weighted[h] + 16 * i), out.z[h] - 14));
    }
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
inline void add_values(const BlockWeights<H>& weights, const KeyBlock& block, int visible, Partial* spans) {
  const int pairs = (visible + 7) / 8 * 4;  // keys that are not visible weigh nothing
  FoldFactors factors[H];
  for (int h = 0; h < H; ++h) {
    if (!spans[h].empty) factors[h] = fold_factors(spans[h], weights.m[h]);
  }
  for (int eighth = 0; eighth < 8; ++eighth) {
    I dot[H] = {};
    const auto ahead = [&](int64_t pair) { return block.next_keys + eighth * 1024 + pair * 32; };
    pair_sums<H>(block.values + eighth * 1024, weights.weight[0], 64, pairs, ahead, dot);
    for (int h = 0; h < H; ++h) {
      float* o = spans[h].o + 16 * eighth;
      const F added = to_float(dot[h]) * all(power_of_two(weights.z[h] - 24));
      store(o, spans[h].empty ? added : load(o) * all(factors[h].into) + added * all(factors[h].next));
    }
  }
  for (int h = 0; h < H; ++h) {
    Partial& span = spans[h];
    span.l = span.empty ? weights.l[h] : span.l * factors[h].into + weights.l[h] * factors[h].next;
    span.m = span.empty ? weights.m[h] : factors[h].m;
    span.empty = false;
  }
}

template <int H>
inline void attend_heads(const int16_t* queries, const float* query_size, int heads, const KeyBlock& block,
                         int visible, Partial* spans) {
  for (; heads >= H; heads -= H, queries += 128 * H, query_size += H, spans += H) {
    alignas(64) int32_t score[H][64];
    BlockWeights<H> weights;
    prefetch(block.key_exponents);
    prefetch(block.value_exponents);
    block_scores<H>(queries, block, (visible + 15) / 16, score);
    block_weights<H>(score, query_size, block, visible, weights);
    add_values<H>(weights, block, visible, spans);
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
