// Attention in tiles: pairs of a row and one of the query heads that share a KV head, 16 a warp, 64 a group
// of four warps. A lane holds rows lane/4 and lane/4 + 8 of its warp's 16 pairs, and of each the keys (then
// dimensions) 8j + lane%4·2 + {0, 1}, as accumulators of wgmma and mma.m16n8k16 have them: the order of rule
// 8's sums.
#pragma once

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/attention_tiles.h"
#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/shared.cuh"
#include "backend/cuda/kernels/weighing.cuh"

namespace tercet::cuda {

constexpr int kPairs = 64;           // of a group
constexpr int kHalfTile = 64 * 128;  // bytes of 64 rows of 64 fp16 numbers

__device__ inline int blocks_of(const TileParams& p, AttentionTile tile) {
  return p.rows.places.position[tile.first + tile.count - 1] / 64 + 1;
}

/// Where a pair of a warpgroup is. What a tile lacks repeats its last row and is not written.
struct Pair {
  int row;   // of the step
  int head;  // of the KV head's
  bool real;
};

__device__ inline Pair pair_at(AttentionTile tile, int sharing, int group, int index) {
  const int in_group = 64 / sharing;
  const int row = group * in_group + min(index / sharing, in_group - 1);
  return {tile.first + min(row, tile.count - 1), index % sharing,
          index < in_group * sharing && row < tile.count};
}

/// The queries of this warp's 16 pairs of 64, rounded (rule 8), to shared memory, dimensions 64 and on
/// kHalfTile further; and their exponents.
__device__ inline void round_queries(const TileParams& p, uint32_t queries, uint32_t exponents,
                                     AttentionTile tile, int kv_head, int group, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int sharing = p.rows.heads / p.rows.cache.heads;
#pragma unroll 2
  for (int index = warp * 16; index < warp * 16 + 16; ++index) {
    const Pair pair = pair_at(tile, sharing, group, index);
    const float* from = p.rows.qkv + pair.row * p.rows.ld + (kv_head * sharing + pair.head) * kHead;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = from[lane + 32 * i];
    const float size = size_of(x);
    HeadNumber n{};
    for (int i = 0; i < 4; ++i) {
      n = round_head(x[i], size, 12);
      const int d = lane + 32 * i;
      const uint32_t at = d / 64 * kHalfTile + swizzled(index, d % 64 / 8) + d % 8 * 2;
      write_half(queries + at, half_bits(static_cast<float>(n.n) * 0x1p-12F));
    }
    if (lane > 0) continue;
    write_int(exponents + index * 4, n.exponent);
    if (!n.finite && pair.real) p.rows.failed[pair.row] = 1;
  }
}

/// What a block's keys come to, of a lane's two rows.
struct WeighedPairs {
  float m[2], l[2];
  float up[2];  // 2^(z + 10)
};

/// From q·k to P, divided by 2^(z + 10), as the a of products with values. `visible`: keys of the block that
/// a row sees.
__device__ inline WeighedPairs weigh(float (&scores)[32], uint32_t factors, const float (&q_power)[2],
                                     const int (&visible)[2], bool all_visible, uint32_t (&weights)[16]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  WeighedPairs out;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 factor = read_two_floats(factors + (8 * j + 2 * t) * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = scores[4 * j + i];
      score = (score * q_power[i / 2]) * (i % 2 == 0 ? factor.x : factor.y);
    }
  }
  if (!all_visible) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (i / 4 * 8 + 2 * t + i % 2 >= visible[i / 2 % 2]) scores[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      largest = fmaxf(largest, fmaxf(scores[4 * j + 2 * row], scores[4 * j + 2 * row + 1]));
    }
    out.m[row] = rintf(quad_max(largest));
    float l = 0.0F, sum = 0.0F;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 factor = read_two_floats(factors + (64 + 8 * j + 2 * t) * 4);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[4 * j + 2 * row + e];
        const float weight = weight_of(score, out.m[row]);
        const float weighted = weight * (e == 0 ? factor.x : factor.y);
        l = l + weight;
        sum = sum + weighted;
        score = weighted;
      }
    }
    out.l[row] = quad_sum(l);
    const int z = weight_exponent(quad_sum(sum));
    out.up[row] = plain_power(z);
    const float down = plain_power(-z);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float* const of_pair = &scores[4 * j + 2 * row];
      weights[2 * j + row] = half_pair(of_pair[0] * down, of_pair[1] * down);
    }
  }
  return out;
}

/// A running result but for O; empty: m = −∞, l = 0.
struct Running {
  float m[2] = {-INFINITY, -INFINITY};
  float l[2] = {0.0F, 0.0F};
};

/// Adds the next m and l; a and b receive the factors of O before and of the next.
__device__ inline void fold(Running& into, const float (&m)[2], const float (&l)[2], float (&a)[2],
                            float (&b)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float next = fmaxf(into.m[row], m[row]);
    a[row] = short_factor(into.m[row] - next);
    b[row] = short_factor(m[row] - next);
    into.l[row] = into.l[row] * a[row] + l[row] * b[row];
    into.m[row] = next;
  }
}

/// O ÷ l of a warp's pairs; o: dimensions 0 to 63 and 64 to 127.
__device__ inline void write_results(const TileParams& p, AttentionTile tile, int kv_head, int group,
                                     int warp, const float (&o)[2][32], const Running& all) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int sharing = p.rows.heads / p.rows.cache.heads;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const Pair pair = pair_at(tile, sharing, group, warp * 16 + lane / 4 + 8 * row);
    if (!pair.real) continue;
    float* const to =
        p.rows.out + pair.row * p.rows.ld_out + (kv_head * sharing + pair.head) * kHead + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* const from = &o[half][4 * j + 2 * row];
        *reinterpret_cast<float2*>(to + half * 64 + 8 * j) = {from[0] / all.l[row], from[1] / all.l[row]};
      }
    }
  }
}

}  // namespace tercet::cuda
