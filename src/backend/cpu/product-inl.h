// Rows times a tile of 16 packed outputs (docs/exactness.md, rules 2 and 3). A lane is an output, so the
// block sums need no sum across lanes, and a leaf's chain runs in all lanes at once.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/math-inl.h"

namespace tercet::cpu::TERCET_CPU_LEVEL {

inline F load_scales(const uint8_t* p, ScaleType type) {
  if (type == ScaleType::bf16) return load_bf16(p);
  if (type == ScaleType::f16) return load_f16(p);
  float lane[16];
  __builtin_memcpy(lane, p, 64);
  return load(lane);
}

inline int64_t scale_bytes(ScaleType type) { return type == ScaleType::f32 ? 64 : 32; }

/// One row leaves the memory waiting; what is asked for this far ahead has come when its turn does.
inline constexpr int64_t kPrefetchBytes = 4608;

/// d[r] += Σ q·n of one group and plane of B bits: exact, whatever the order.
template <int B, int R>
inline void plane_sums(const uint8_t* q, int64_t group, const uint8_t* const (&numbers)[R], I (&d)[R]) {
  constexpr int kFields = 8 / B;
  const int64_t blocks = group * B / 32;
  const int64_t at_once = B == 4 && kBlocksInNarrow < blocks ? kBlocksInNarrow : blocks;
  for_halves([&](auto half) {
    constexpr int kHalf = decltype(half)::value;
    const uint8_t* from = q + kHalf * static_cast<int>(sizeof(Register));
    for (int64_t begin = 0; begin < blocks; begin += at_once) {
      // Two chains each for a single row: one would wait for its own last sum.
      constexpr int kChains = R == 1 ? 2 : 1;
      Narrow a[R][kChains] = {};
      Narrow b[R][kChains] = {};
      const auto add_block = [&](int64_t s) {
        const Register packed = load_register(from + s * 64);
        if (kHalf == 0) prefetch(from + s * 64 + kPrefetchBytes);
        for_fields<kFields>([&](auto field) {
          constexpr int kField = decltype(field)::value;
          constexpr int kChain = kField % kChains;
          const Register values = bits_at<B * kField, B>(packed);
          for (int r = 0; r < R; ++r) {
            const uint8_t* n = numbers[r] + 8 * kFields * s + 16 * (kField / 2) + 4 * (kField % 2);
            a[r][kChain] = dot4(a[r][kChain], values, n);
            b[r][kChain] = dot4(b[r][kChain], values, n + 8);
          }
        });
      };
      if constexpr (B == 4) {
        for_unrolled(begin, begin + at_once, add_block);
      } else {
        for (int64_t s = begin; s < begin + at_once; ++s) add_block(s);
      }
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < kChains; ++c) add_half<kHalf>(d[r], join(a[r][c], b[r][c]));
      }
    }
  });
}

/// d[r] = Σ q·n of one group and part of 1 to 4 bits.
template <int R>
inline void part_sums(const uint8_t* q, int64_t group, int bits, const uint8_t* const (&numbers)[R],
                      I (&d)[R]) {
  if (bits == 4) {
    plane_sums<4, R>(q, group, numbers, d);
    return;
  }
  if (bits != 2) plane_sums<1, R>(q, group, numbers, d);
  if (bits == 1) return;
  if (bits == 3) {
    for (int r = 0; r < R; ++r) d[r] = shift_left<2>(d[r]);
    q += group * 2;
  }
  plane_sums<2, R>(q, group, numbers, d);
}

template <int R>
inline void affine_group(const TileLayout& w, const uint8_t* at, const ProductRow* rows, int64_t g,
                         F (&acc)[R]) {
  const uint8_t* scales = at + w.group * w.bits * 2;
  const F s = load_scales(scales, w.scale);
  const F b = load_scales(scales + scale_bytes(w.scale), w.scale);
  const uint8_t* numbers[R];
  for (int r = 0; r < R; ++r) numbers[r] = rows[r].numbers + 2 * g * w.group;
  const auto add_part = [&](int bits, float weight) {
    I d[R] = {};
    part_sums<R>(at, w.group, bits, numbers, d);
    at += w.group * bits * 2;
    for (int r = 0; r < R; ++r) acc[r] = fma(s * all(weight * rows[r].unit[g]), to_float(d[r]), acc[r]);
  };
  if (w.bits > 4) add_part(w.bits - 4, 16.0F);
  add_part(w.bits < 4 ? w.bits : 4, 1.0F);
  for (int r = 0; r < R; ++r) acc[r] = fma(b * all(rows[r].unit[g]), all(rows[r].sum[g]), acc[r]);
}

template <int R>
inline void float_group(const TileLayout& w, const uint8_t* at, const ProductRow* rows, int64_t g,
                        F (&acc)[R]) {
  const int64_t pairs = w.group / 2;
  I d[R] = {};
  for_halves([&](auto half) {
    constexpr int kHalf = decltype(half)::value;
    const uint8_t* from = at + kHalf * static_cast<int>(sizeof(Register));
    Wide sum[R] = {};
    for_unrolled(0, pairs, [&](int64_t p) {
      const Register m = load_register(from + p * 64);
      if (kHalf == 0) prefetch(from + p * 64 + kPrefetchBytes);
      for (int r = 0; r < R; ++r) sum[r] = dot2(sum[r], m, rows[r].numbers + 2 * g * w.group + 4 * p);
    });
    for (int r = 0; r < R; ++r) add_half<kHalf>(d[r], sum[r]);
  });
  const F v = power_of_two(load_bytes(reinterpret_cast<const int8_t*>(at + pairs * 64)) - all(12));
  for (int r = 0; r < R; ++r) acc[r] = fma(v * all(rows[r].unit[g]), to_float(d[r]), acc[r]);
}

/// One leaf of R rows.
template <int R>
void leaf_of_rows(const TileLayout& w, const uint8_t* tile, const ProductRow* rows, int64_t begin) {
  F acc[R];
  for (F& a : acc) a = all(0.0F);
  for (int64_t g = begin; g < begin + w.groups_in_leaf; ++g) {
    const uint8_t* at = tile + g * w.group_bytes;
    if (w.bits == 0) {
      float_group<R>(w, at, rows, g, acc);
    } else {
      affine_group<R>(w, at, rows, g, acc);
    }
  }
  for (int r = 0; r < R; ++r) store(rows[r].y, begin == 0 ? acc[r] : load(rows[r].y) + acc[r]);
}

/// As many rows as fit R registers' blocks, the rest by smaller blocks.
template <int R>
inline void leaf_of_all_rows(const TileLayout& w, const uint8_t* tile, const ProductRow* rows, int64_t count,
                             int64_t begin) {
  for (; count >= R; count -= R, rows += R) leaf_of_rows<R>(w, tile, rows, begin);
  if constexpr (R > 1) leaf_of_all_rows<R / 2>(w, tile, rows, count, begin);
}

inline void product(const TileLayout& w, const uint8_t* tile, const ProductRow* rows, int64_t count) {
  // A leaf of the tile and of a block of rows stays in the nearest cache while all rows meet it.
  for (int64_t begin = 0; begin < w.groups; begin += w.groups_in_leaf) {
    leaf_of_all_rows<kRowsAtOnce>(w, tile, rows, count, begin);
  }
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
