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

/// d[r] = Σ q·n of one group and plane of 4 bits: exact, whatever the order.
template <int R>
inline void nibble_sums(const uint8_t* q, int64_t group, const uint8_t* const (&numbers)[R], I (&d)[R]) {
  const int64_t blocks = group / 8;
  for_halves([&](auto half) {
    constexpr int kHalf = decltype(half)::value;
    const uint8_t* from = q + kHalf * static_cast<int>(sizeof(Register));
    for (int64_t begin = 0; begin < blocks; begin += kBlocksInNarrow) {
      const int64_t end = blocks < begin + kBlocksInNarrow ? blocks : begin + kBlocksInNarrow;
      // Two chains each for a single row: one would wait for its own last sum.
      constexpr int kChains = R == 1 ? 2 : 1;
      Narrow a[R][kChains] = {};
      Narrow b[R][kChains] = {};
      for_unrolled(begin, end, [&](int64_t s) {
        const Register packed = load_register(from + s * 64);
        const Register low = bits_at<0, 4>(packed);
        const Register high = bits_at<4, 4>(packed);
        if (kHalf == 0) prefetch(from + s * 64 + kPrefetchBytes);
        for (int r = 0; r < R; ++r) {
          const uint8_t* n = numbers[r] + 16 * s;
          a[r][0] = dot4(a[r][0], low, n);
          b[r][0] = dot4(b[r][0], low, n + 8);
          a[r][kChains - 1] = dot4(a[r][kChains - 1], high, n + 4);
          b[r][kChains - 1] = dot4(b[r][kChains - 1], high, n + 12);
        }
      });
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < kChains; ++c) add_half<kHalf>(d[r], join(a[r][c], b[r][c]));
      }
    }
  });
}

/// The same of a plane of B = 1 or 2 bits, added to d.
template <int B, int R>
inline void thin_sums(const uint8_t* q, int64_t group, const uint8_t* const (&numbers)[R], I (&d)[R]) {
  constexpr int kFields = 8 / B;
  for_halves([&](auto half) {
    constexpr int kHalf = decltype(half)::value;
    const uint8_t* from = q + kHalf * static_cast<int>(sizeof(Register));
    Narrow a[R] = {};
    Narrow b[R] = {};
    for (int64_t s = 0; s < group * B / 32; ++s) {
      const Register packed = load_register(from + s * 64);
      if (kHalf == 0) prefetch(from + s * 64 + kPrefetchBytes);
      for_fields<kFields>([&](auto field) {
        constexpr int kField = decltype(field)::value;
        const Register values = bits_at<B * kField, B>(packed);
        for (int r = 0; r < R; ++r) {
          const uint8_t* n = numbers[r] + 8 * kFields * s + 16 * (kField / 2) + 4 * (kField % 2);
          a[r] = dot4(a[r], values, n);
          b[r] = dot4(b[r], values, n + 8);
        }
      });
    }
    for (int r = 0; r < R; ++r) add_half<kHalf>(d[r], join(a[r], b[r]));
  });
}

/// The same of a part of 1 to 3 bits. Apart from its callers, whose loops over nibbles it would slow down.
template <int R>
[[gnu::noinline]] void narrow_part_sums(const uint8_t* q, int64_t group, int bits,
                                        const uint8_t* const (&numbers)[R], I (&d)[R]) {
  if (bits != 2) {
    thin_sums<1, R>(q, group, numbers, d);
    if (bits == 1) return;
    for (int r = 0; r < R; ++r) d[r] = shift_left<2>(d[r]);
    q += group * 2;
  }
  thin_sums<2, R>(q, group, numbers, d);
}

/// acc[r] = fma(s·weight·u, d[r], acc[r])
template <int R>
inline void add_sums(F s, float weight, const ProductRow* rows, int64_t g, const I (&d)[R], F (&acc)[R]) {
  for (int r = 0; r < R; ++r) acc[r] = fma(s * all(weight * rows[r].unit[g]), to_float(d[r]), acc[r]);
}

template <int R>
inline void affine_group(const TileLayout& w, const uint8_t* at, const ProductRow* rows, int64_t g,
                         F (&acc)[R]) {
  const uint8_t* scales = at + w.group * w.bits * 2;
  const F s = load_scales(scales, w.scale);
  const F b = load_scales(scales + scale_bytes(w.scale), w.scale);
  const uint8_t* numbers[R];
  for (int r = 0; r < R; ++r) numbers[r] = rows[r].numbers + 2 * g * w.group;
  if (w.bits % 4 != 0) {
    const int part = w.bits % 4;
    I d[R] = {};
    narrow_part_sums<R>(at, w.group, part, numbers, d);
    add_sums<R>(s, w.bits > 4 ? 16.0F : 1.0F, rows, g, d, acc);
    at += w.group * part * 2;
  }
  for (int nibbles = w.bits / 4; nibbles > 0; --nibbles, at += w.group * 8) {
    I d[R] = {};
    nibble_sums<R>(at, w.group, numbers, d);
    add_sums<R>(s, nibbles == 2 ? 16.0F : 1.0F, rows, g, d, acc);
  }
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

/// One leaf of R rows whose weights have one or two planes of 4 bits and groups of 64, as most have: written
/// out down to the last block, so that all sums stay in registers and no pointer is worked out twice. Up to
/// kRowsWrittenOut[planes − 1] rows: with more it was slower on that level, or nobody measured it.
template <int R, int kPlanes>
void nibble_leaf_of_rows(const TileLayout& w, const uint8_t* at, const ProductRow* rows, int64_t begin) {
  constexpr int kBlocks = 8;
  constexpr int kChunk = kBlocks < kBlocksInNarrow ? kBlocks : kBlocksInNarrow;
  constexpr int kPlaneBytes = 64 * kBlocks;
  // Two chains each for a single row: one would wait for its own last sum.
  constexpr int kChains = R == 1 ? 2 : 1;
  F acc[R];
  const uint8_t* numbers[R];
  for_fields<R>([&](auto r) __attribute__((always_inline)) {
    acc[r.value] = all(0.0F);
    numbers[r.value] = rows[r.value].numbers + 16 * kBlocks * begin;
  });
  at += begin * w.group_bytes;
  const int64_t end = begin + w.groups_in_leaf;
  for (int64_t g = begin; g < end; ++g, at += w.group_bytes - kPlanes * kPlaneBytes) {
    const F s = load_scales(at + kPlanes * kPlaneBytes, w.scale);
    const F b = load_scales(at + kPlanes * kPlaneBytes + scale_bytes(w.scale), w.scale);
    for (int plane = 0; plane < kPlanes; ++plane, at += kPlaneBytes) {
      I d[R] = {};
      for_halves([&](auto half) __attribute__((always_inline)) {
        constexpr int kHalf = decltype(half)::value;
        const uint8_t* from = at + kHalf * static_cast<int>(sizeof(Register));
        for_fields<kBlocks / kChunk>([&](auto chunk) __attribute__((always_inline)) {
          Narrow low_sum[R][kChains] = {};
          Narrow high_sum[R][kChains] = {};
          for_fields<kChunk>([&](auto block) __attribute__((always_inline)) {
            constexpr int kBlock = decltype(chunk)::value * kChunk + decltype(block)::value;
            const Register packed = load_register(from + kBlock * 64);
            const Register low = bits_at<0, 4>(packed);
            const Register high = bits_at<4, 4>(packed);
            if (kHalf == 0) prefetch(from + kBlock * 64 + kPrefetchBytes);
            for_fields<R>([&](auto r) __attribute__((always_inline)) {
              Narrow* a = low_sum[r.value];
              Narrow* c = high_sum[r.value];
              const uint8_t* n = numbers[r.value] + 16 * kBlock;
              a[0] = dot4(a[0], low, n);
              c[0] = dot4(c[0], low, n + 8);
              a[kChains - 1] = dot4(a[kChains - 1], high, n + 4);
              c[kChains - 1] = dot4(c[kChains - 1], high, n + 12);
            });
          });
          for_fields<R>([&](auto r) __attribute__((always_inline)) {
            for_fields<kChains>([&](auto chain) __attribute__((always_inline)) {
              add_half<kHalf>(d[r.value],
                              join(low_sum[r.value][chain.value], high_sum[r.value][chain.value]));
            });
          });
        });
      });
      const float weight = plane + 1 < kPlanes ? 16.0F : 1.0F;
      for_fields<R>([&](auto r) __attribute__((always_inline)) {
        const F u = all(weight * rows[r.value].unit[g]);
        acc[r.value] = fma(s * u, to_float(d[r.value]), acc[r.value]);
      });
    }
    for_fields<R>([&](auto r) __attribute__((always_inline)) {
      acc[r.value] = fma(b * all(rows[r.value].unit[g]), all(rows[r.value].sum[g]), acc[r.value]);
      numbers[r.value] += 16 * kBlocks;
    });
  }
  for_fields<R>([&](auto r) __attribute__((always_inline)) {
    float* y = rows[r.value].y;
    store(y, begin == 0 ? acc[r.value] : load(y) + acc[r.value]);
  });
}

/// One leaf of R rows.
template <int R>
void leaf_of_rows(const TileLayout& w, const uint8_t* tile, const ProductRow* rows, int64_t begin) {
  if constexpr (R <= kRowsWrittenOut[0]) {
    if (w.group == 64 && w.bits == 4) return nibble_leaf_of_rows<R, 1>(w, tile, rows, begin);
  }
  if constexpr (R <= kRowsWrittenOut[1]) {
    if (w.group == 64 && w.bits == 8) return nibble_leaf_of_rows<R, 2>(w, tile, rows, begin);
  }
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

/// R ≥ count rows, or none.
template <int R>
inline void leaf_of_few_rows(const TileLayout& w, const uint8_t* tile, const ProductRow* rows, int64_t count,
                             int64_t begin) {
  if (count == R) return leaf_of_rows<R>(w, tile, rows, begin);
  if constexpr (R > 1) leaf_of_few_rows<R - 1>(w, tile, rows, count, begin);
}

inline void product(const TileLayout& w, const uint8_t* tile, const ProductRow* rows, int64_t count) {
  // A leaf of the tile and of a block of rows stays in the nearest cache while all rows meet it.
  for (int64_t begin = 0; begin < w.groups; begin += w.groups_in_leaf) {
    int64_t r = 0;
    for (; r + kRowsAtOnce <= count; r += kRowsAtOnce) leaf_of_rows<kRowsAtOnce>(w, tile, rows + r, begin);
    leaf_of_few_rows<kRowsAtOnce - 1>(w, tile, rows + r, count - r, begin);
  }
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
