#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/attention_tiles.h"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/weighing.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

namespace tercet::cuda {
namespace {

// One warpgroup copies blocks of 64 keys and values, three attend: each has 64 pairs of a row and a query
// head. A lane holds rows lane/4 and lane/4 + 8 of its warp's 16 pairs, and of each the keys (then
// dimensions) 8j + lane%4·2 + {0, 1}: the order of rule 8's sums.

constexpr int kGroup = 128;  // threads
constexpr int kAttending = 3;
constexpr int kThreads = (1 + kAttending) * kGroup;
constexpr int kCopyRegisters = 32, kAttendRegisters = 160;
constexpr int kPairs = 64;  // of a warpgroup
constexpr int kStages = 2;
constexpr int kHalfTile = 64 * 128;  // bytes of 64 rows of 64 fp16 numbers
constexpr int kKeyBytes = 2 * kHalfTile;
constexpr int kValueBytes = 2 * kHalfTile;

/// Offsets in shared memory.
constexpr int kQueries = 0;
constexpr int kKeys = kQueries + kAttending * 2 * kHalfTile;
constexpr int kValues = kKeys + kStages * kKeyBytes;
constexpr int kTotals = kValues + kStages * kValueBytes;             // O of earlier spans
constexpr int kFactors = kTotals + kAttending * kPairs * kHead * 4;  // of 64 keys, then of 64 values
constexpr int kExponents = kFactors + kStages * 128 * 4;             // of the pairs' queries
constexpr int kBarriers = kExponents + kAttending * kPairs * 4;
constexpr int kBytes = kBarriers + 64;

__device__ inline uint32_t full(uint32_t begin, int stage) { return begin + kBarriers + stage * 16; }
__device__ inline uint32_t empty(uint32_t begin, int stage) { return begin + kBarriers + stage * 16 + 8; }

__device__ inline int blocks_of(const TileParams& p, AttentionTile tile) {
  return p.rows.places.position[tile.first + tile.count - 1] / 64 + 1;
}

__device__ void copy_blocks(const TileParams& p, uint32_t begin, AttentionTile tile, int kv_head) {
  const CacheView& cache = p.rows.cache;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t* const pages = p.rows.places.pages + p.rows.places.first_page[tile.first];
  const int8_t* const exponents = thread < 64 ? cache.key_exponents : cache.value_exponents;
  const int blocks = blocks_of(p, tile);
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    const int stage = b % kStages;
    barrier_wait(empty(begin, stage), (b / kStages & 1) ^ 1);
    const int64_t slot = cache.slot(p.rows.layer, pages[b], kv_head);
    const int exponent = exponents[slot + thread % 64];
    const uint16_t* const keys = cache.keys + slot * kHead + thread * 8;
    const uint16_t* const values = cache.values + slot * kHead + thread * 8;
    const uint32_t to_keys = begin + kKeys + stage * kKeyBytes + thread % 16 / 8 * kHalfTile;
    const uint32_t to_values = begin + kValues + stage * kValueBytes;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      copy_async(to_keys + swizzled(thread / 16 + 8 * i, thread % 8), keys + i * kGroup * 8);
      copy_async(to_values + swizzled(thread / 8 + 16 * i, thread % 8), values + i * kGroup * 8);
    }
    commit_copies();
    const float power = power_of_two(exponent);
    write_float(begin + kFactors + (stage * 128 + thread) * 4, thread < 64 ? kScale * power : power);
    wait_for_copies<0>();
    fence_for_wgmma();
    barrier_arrive(full(begin, stage));
  }
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

/// The queries of this warp's 16 pairs, rounded (rule 8), to shared memory.
__device__ void round_queries(const TileParams& p, uint32_t begin, AttentionTile tile, int kv_head, int group,
                              int warp) {
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
      write_half(begin + kQueries + group * 2 * kHalfTile + at,
                 half_bits(static_cast<float>(n.n) * 0x1p-12F));
    }
    if (lane > 0) continue;
    write_int(begin + kExponents + (group * kPairs + index) * 4, n.exponent);
    if (!n.finite && pair.real) p.rows.failed[pair.row] = 1;
  }
}

/// Begins q·k of the pairs with the keys of a block.
__device__ inline void multiply_keys(uint32_t begin, int group, int stage, float (&scores)[32]) {
  const uint64_t queries = rows_descriptor(begin + kQueries + group * 2 * kHalfTile);
  const uint64_t keys = rows_descriptor(begin + kKeys + stage * kKeyBytes);
  hold(scores);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint64_t at = i / 4 * (kHalfTile / 16) + i % 4 * 2;
    wgmma(scores, queries + at, keys + at, i);
  }
  wgmma_commit();
}

/// What a block's keys come to, of a lane's two rows.
struct Weighed {
  float m[2], l[2];
  float up[2];  // 2^(z + 10)
};

/// From q·k to P, divided by 2^(z + 10), as wgmma's a. `visible`: keys of the block that a row sees.
__device__ inline Weighed weigh(float (&scores)[32], uint32_t factors, const float (&q_power)[2],
                                const int (&visible)[2], bool all_visible, uint32_t (&weights)[16]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  Weighed out;
  hold(scores);
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

__device__ void attend(const TileParams& p, uint32_t begin, AttentionTile tile, int kv_head) {
  const int thread = static_cast<int>(threadIdx.x) - kGroup;
  const int group = thread / kGroup;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  const int sharing = p.rows.heads / p.rows.cache.heads;
  const int blocks = blocks_of(p, tile);
  round_queries(p, begin, tile, kv_head, group, warp);
  fence_for_wgmma();
  named_barrier(1 + group, kGroup);
  int position[2];
  float q_power[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int index = warp * 16 + lane / 4 + 8 * row;
    position[row] = p.rows.places.position[pair_at(tile, sharing, group, index).row];
    q_power[row] = power_of_two(read_int(begin + kExponents + (group * kPairs + index) * 4));
  }
  const uint32_t totals = begin + kTotals + thread * 16;  // 16 of each thread
  Running span, all;
  float o[2][32];  // of the span: dimensions 0 to 63 and 64 to 127
#pragma unroll
  for (int i = 0; i < 32; ++i) o[0][i] = o[1][i] = 0.0F;
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    const int stage = b % kStages;
    barrier_wait(full(begin, stage), b / kStages & 1);
    uint32_t weights[16];
    float a[2], c[2];
    {
      float scores[32];
      multiply_keys(begin, group, stage, scores);
      wgmma_wait<0>();
      const int visible[2] = {position[0] + 1 - b * 64, position[1] + 1 - b * 64};
      const bool all_visible = __all_sync(kAll, visible[0] >= 64 && visible[1] >= 64);
      const Weighed block =
          weigh(scores, begin + kFactors + stage * 512, q_power, visible, all_visible, weights);
      fold(span, block.m, block.l, a, c);
      c[0] = c[0] * block.up[0];
      c[1] = c[1] * block.up[1];
    }
    const bool shrinks = __any_sync(kAll, a[0] != 1.0F || a[1] != 1.0F) != 0;
    const uint64_t values = rows_descriptor(begin + kValues + stage * kValueBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float d[32];
      hold(d);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma(d, weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3],
              values + half * (kHalfTile / 16) + 2 * i, i);
      }
      wgmma_commit();
      wgmma_wait<0>();
      hold(d);
      if (shrinks) {
#pragma unroll
        for (int i = 0; i < 32; ++i) o[half][i] = o[half][i] * a[i / 2 % 2];
      }
#pragma unroll
      for (int i = 0; i < 32; ++i) o[half][i] = fma_(d[i], c[i / 2 % 2], o[half][i]);
    }
    __syncwarp();
    barrier_arrive(empty(begin, stage));
    const bool last = b == blocks - 1;
    if (b % kSpanBlocks != kSpanBlocks - 1 && !last) continue;
    const bool first = b < kSpanBlocks;
    fold(all, span.m, span.l, a, c);
    span = Running();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t total = totals + (half * 8 + j) * kAttending * kGroup * 16;
        float4 sum = {o[half][4 * j], o[half][4 * j + 1], o[half][4 * j + 2], o[half][4 * j + 3]};
        if (!first) {
          const float4 before = read_floats(total);
          sum = {before.x * a[0] + sum.x * c[0], before.y * a[0] + sum.y * c[0],
                 before.z * a[1] + sum.z * c[1], before.w * a[1] + sum.w * c[1]};
        }
        if (!last) write_floats(total, sum);
        o[half][4 * j] = last ? sum.x : 0.0F;
        o[half][4 * j + 1] = last ? sum.y : 0.0F;
        o[half][4 * j + 2] = last ? sum.z : 0.0F;
        o[half][4 * j + 3] = last ? sum.w : 0.0F;
      }
    }
  }
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

__global__ void __launch_bounds__(kThreads, 1) tiles_kernel(TileParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t begin = shared_begin(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full(begin, stage), kGroup);
      barrier_init(empty(begin, stage), kAttending * kGroup);
    }
  }
  __syncthreads();
  after_earlier_kernels();
  const AttentionTile tile = p.tiles[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  if (threadIdx.x < kGroup) {
    fewer_registers<kCopyRegisters>();
    copy_blocks(p, begin, tile, kv_head);
  } else {
    more_registers<kAttendRegisters>();
    attend(p, begin, tile, kv_head);
  }
}

}  // namespace

void attention_tiles(Launcher& launcher, const TileParams& params) {
  launcher.add(tiles_kernel,
               dim3(static_cast<unsigned>(params.count), static_cast<unsigned>(params.rows.cache.heads)),
               dim3(kThreads), params, kBytes);
}

}  // namespace tercet::cuda
