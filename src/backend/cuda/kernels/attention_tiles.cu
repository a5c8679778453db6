#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/attention_tiles.h"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/tile_pairs.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

namespace tercet::cuda {
namespace {

// One warpgroup copies blocks of 64 keys and values, three attend: each has 64 pairs of a row and a query
// head (tile_pairs.cuh).

constexpr int kGroup = 128;  // threads
constexpr int kAttending = 3;
constexpr int kThreads = (1 + kAttending) * kGroup;
constexpr int kCopyRegisters = 32, kAttendRegisters = 160;
constexpr int kStages = 2;
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
    fence_for_async();
    barrier_arrive(full(begin, stage));
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

__device__ void attend(const TileParams& p, uint32_t begin, AttentionTile tile, int kv_head) {
  const int thread = static_cast<int>(threadIdx.x) - kGroup;
  const int group = thread / kGroup;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  const int sharing = p.rows.heads / p.rows.cache.heads;
  const int blocks = blocks_of(p, tile);
  round_queries(p, begin + kQueries + group * 2 * kHalfTile, begin + kExponents + group * kPairs * 4, tile,
                kv_head, group, warp);
  fence_for_async();
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
      hold(scores);
      const WeighedPairs block =
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
  write_results(p, tile, kv_head, group, warp, o, all);
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
