#include "backend/cuda/kernels/attention_mma.h"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/tile_pairs.cuh"

namespace tercet::cuda {
namespace {

// Two groups of four warps, of 64 pairs each, attend to the same keys and values, of which the next block is
// on its way to shared memory.

constexpr int kGroups = 2;
constexpr int kThreads = kGroups * 128;
constexpr int kStages = 2;

/// Offsets in shared memory.
constexpr int kQueries = 0;
constexpr int kKeys = kQueries + kGroups * 2 * kHalfTile;
constexpr int kValues = kKeys + kStages * 2 * kHalfTile;
constexpr int kFactors = kValues + kStages * 2 * kHalfTile;  // of 64 keys, then of 64 values
constexpr int kExponents = kFactors + kStages * 128 * 4;     // of the pairs' queries
constexpr int kBytes = kExponents + kGroups * kPairs * 4;
static_assert(kBytes <= kCommonShared);

/// Asks for a block's keys and values; returns the exponent of which this thread makes a factor.
__device__ inline int ask(const TileParams& p, uint32_t begin, int stage, int32_t page, int kv_head) {
  const CacheView& cache = p.rows.cache;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t slot = cache.slot(p.rows.layer, page, kv_head);
  const uint16_t* const keys = cache.keys + slot * kHead + thread * 8;
  const uint16_t* const values = cache.values + slot * kHead + thread * 8;
  const uint32_t to_keys = begin + kKeys + stage * 2 * kHalfTile + thread % 16 / 8 * kHalfTile;
  const uint32_t to_values = begin + kValues + stage * 2 * kHalfTile;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    copy_async(to_keys + swizzled(thread / 16 + 16 * i, thread % 8), keys + i * kThreads * 8);
    copy_async(to_values + swizzled(thread / 8 + 32 * i, thread % 8), values + i * kThreads * 8);
  }
  return (thread < 64 ? cache.key_exponents : cache.value_exponents)[slot + thread % 64];
}

__device__ inline void write_factor(uint32_t begin, int stage, int exponent) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= 128) return;
  const float power = power_of_two(exponent);
  write_float(begin + kFactors + (stage * 128 + thread) * 4, thread < 64 ? kScale * power : power);
}

/// q·k of a warp's 16 pairs, whose queries begin at `queries`, with the keys of a block.
__device__ inline void multiply_keys(uint32_t queries, uint32_t keys, float (&scores)[32]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i] = 0.0F;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int half = i / 4 * kHalfTile, piece = i % 4 * 2;
    uint32_t a[4];
    load_matrices(a, queries + half + swizzled(lane % 16, piece + lane / 16));
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t b[4];
      load_matrices(b, keys + half + swizzled(8 * j + lane / 16 * 8 + lane % 8, piece + lane / 8 % 2));
      mma_fp16(*reinterpret_cast<float(*)[4]>(&scores[4 * j]), a[0], a[1], a[2], a[3], b[0], b[1]);
      mma_fp16(*reinterpret_cast<float(*)[4]>(&scores[4 * j + 4]), a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }
}

/// P·V of a warp's pairs, of dimensions 8·i + lane%4·2 + {0, 1}.
__device__ inline void multiply_values(const uint32_t (&weights)[16], uint32_t values, int i, float (&d)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[4];
    load_matrices(b, values + swizzled(8 * i + lane % 8, 4 * half + lane / 8));
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t* const a = &weights[8 * half + 4 * k];
      mma_fp16(d, a[0], a[1], a[2], a[3], b[2 * k], b[2 * k + 1]);
    }
  }
}

/// A span's result joins those of the spans before.
__device__ inline void end_span(Running& all, Running& span, float (&total)[2][32], float (&o)[2][32]) {
  float a[2], c[2];
  fold(all, span.m, span.l, a, c);
  span = Running();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      total[half][i] = total[half][i] * a[i / 2 % 2] + o[half][i] * c[i / 2 % 2];
      o[half][i] = 0.0F;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) mma_kernel(TileParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t begin = shared_begin(memory);
  after_earlier_kernels();
  const AttentionTile tile = p.tiles[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / 128, warp = thread / 32 % 4, lane = thread % 32;
  const int sharing = p.rows.heads / p.rows.cache.heads;
  const int blocks = blocks_of(p, tile);
  const int32_t* const pages = p.rows.places.pages + p.rows.places.first_page[tile.first];
  write_factor(begin, 0, ask(p, begin, 0, pages[0], kv_head));
  commit_copies();
  int32_t page = pages[min(1, blocks - 1)];
  const uint32_t queries = begin + kQueries + group * 2 * kHalfTile;
  const uint32_t exponents = begin + kExponents + group * kPairs * 4;
  round_queries(p, queries, exponents, tile, kv_head, group, warp);
  __syncwarp();
  int position[2];
  float q_power[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int index = warp * 16 + lane / 4 + 8 * row;
    position[row] = p.rows.places.position[pair_at(tile, sharing, group, index).row];
    q_power[row] = power_of_two(read_int(exponents + index * 4));
  }
  Running span, all;
  float o[2][32] = {}, total[2][32] = {};  // of the span, of those before: dimensions 0 to 63, 64 to 127
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    const int stage = b % kStages;
    wait_for_copies<0>();
    __syncthreads();
    const bool more = b + 1 < blocks;
    int exponent = 0;
    if (more) exponent = ask(p, begin, 1 - stage, page, kv_head);
    commit_copies();
    page = pages[min(b + 2, blocks - 1)];
    uint32_t weights[16];
    float a[2], c[2];
    {
      float scores[32];
      multiply_keys(queries + warp * 16 * 128, begin + kKeys + stage * 2 * kHalfTile, scores);
      const int visible[2] = {position[0] + 1 - b * 64, position[1] + 1 - b * 64};
      const bool all_visible = __all_sync(kAll, visible[0] >= 64 && visible[1] >= 64);
      const WeighedPairs block =
          weigh(scores, begin + kFactors + stage * 512, q_power, visible, all_visible, weights);
      fold(span, block.m, block.l, a, c);
      c[0] = c[0] * block.up[0];
      c[1] = c[1] * block.up[1];
    }
    const bool shrinks = __any_sync(kAll, a[0] != 1.0F || a[1] != 1.0F) != 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float d[4] = {};
      multiply_values(weights, begin + kValues + stage * 2 * kHalfTile, i, d);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& to = o[i / 8][i % 8 * 4 + e];
        if (shrinks) to = to * a[e / 2];
        to = fma_(d[e], c[e / 2], to);
      }
    }
    if (more) write_factor(begin, 1 - stage, exponent);
    if (b % kSpanBlocks == kSpanBlocks - 1 || !more) end_span(all, span, total, o);
  }
  write_results(p, tile, kv_head, group, warp, total, all);
}

}  // namespace

void attention_mma(Launcher& launcher, const TileParams& params) {
  launcher.add(mma_kernel,
               dim3(static_cast<unsigned>(params.count), static_cast<unsigned>(params.rows.cache.heads)),
               dim3(kThreads), params, kBytes);
}

}  // namespace tercet::cuda
