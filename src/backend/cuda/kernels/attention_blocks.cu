#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/attention_blocks.h"
#include "backend/cuda/kernels/attention_lanes.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/weighing.cuh"

namespace tercet::cuda {
namespace {

// A warp takes blocks of keys as attention_lanes.cuh has them.

constexpr int kSpansHeld = 64;  // that are folded at a time
constexpr int kFolders = 4;     // groups of kHead threads

/// By the calling warp: a block's keys, 64 rows of 256 bytes, to shared memory; pieces of 16 bytes lie at
/// piece ^ row % 8.
__device__ inline void ask_for_keys(uint32_t shared, const CacheView& cache, int64_t slot) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint16_t* const keys = cache.keys + slot * kHead + lane * 8;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = 2 * i + lane / 16;
    copy_async(shared + row * 256 + ((lane % 16) ^ (row & 7)) * 16, keys + i * 256);
  }
}
/// Its values, 128 rows of 128 bytes, likewise.
__device__ inline void ask_for_values(uint32_t shared, const CacheView& cache, int64_t slot) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint16_t* const values = cache.values + slot * kHead + lane * 8;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = 4 * i + lane / 8;
    copy_async(shared + row * 128 + ((lane % 8) ^ (row & 7)) * 16, values + i * 256);
  }
}

__global__ void __launch_bounds__(32) blocks_kernel(BlocksParams p) {
  after_earlier_kernels();
  extern __shared__ __align__(128) uint8_t memory[];
  const auto shared = shared_address(memory);
  const int kv_head = static_cast<int>(blockIdx.x);
  const int64_t row = p.list == nullptr ? p.first + blockIdx.y : p.list[blockIdx.y];
  const int position = p.rows.places.position[row];
  const int first = static_cast<int>(blockIdx.z) * p.each;  // the last spans, which may be short, come last
  const int end = min(first + p.each, position / 64 + 1);
  if (first >= end) return;
  const CacheView& cache = p.rows.cache;
  const int32_t* const pages = p.rows.places.pages + p.rows.places.first_page[row];
  const auto slot_of = [&](int block) { return cache.slot(p.rows.layer, pages[block], kv_head); };
  // Of keys there are two at a time, the next block's being asked for early; of values one.
  const uint32_t values = shared + (p.each > 1 ? 2 : 1) * kBlockKeyBytes;
  int64_t slot = slot_of(first);
  ask_for_keys(shared, cache, slot);
  commit_copies();
  ask_for_values(values, cache, slot);
  commit_copies();
  Exponents exponents = exponents_of(cache, slot);
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane / 4;
  const int t = lane % 4;
  const int sharing = p.rows.heads / cache.heads;
  const int64_t head = row * p.rows.heads + kv_head * sharing + min(g, sharing - 1);
  uint4 q[4];
  float q_power = p.queries.powers[head];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[i] = reinterpret_cast<const uint4*>(p.queries.halves + head * kHead + 32 * t)[i];
  }
  if (q_power < 0.0F) {
    q_power = 1.0F;
    p.rows.failed[row] = 1;
  }
  float m = -INFINITY, l = 0.0F;
  float o[16][2];
#pragma unroll
  for (int i = 0; i < 16; ++i) o[i][0] = o[i][1] = 0.0F;
#pragma unroll 1
  for (int block = first; block < end; ++block) {
    const uint32_t keys = shared + (block - first) % 2 * kBlockKeyBytes;
    const bool more = block + 1 < end;
    Exponents next_exponents = exponents;
    if (more) {
      slot = slot_of(block + 1);
      ask_for_keys(shared + (block + 1 - first) % 2 * kBlockKeyBytes, cache, slot);
      next_exponents = exponents_of(cache, slot);
    }
    commit_copies();
    wait_for_copies<2>();
    __syncwarp();
    float scores[16];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float c[4] = {};
      multiply_keys(c, keys, j, q);
      scores[2 * j] = c[0];
      scores[2 * j + 1] = c[1];
    }
    const Weighed w = weigh(scores, exponents, q_power, position + 1 - block * 64);
    const float next = fmaxf(m, w.m);
    const float before = short_factor(m - next);
    const float own = short_factor(w.m - next);
    l = l * before + w.l * own;
    m = next;
    wait_for_copies<1>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float c[4] = {};
      multiply_values(c, values, i, w.weights);
      o[i][0] = fma_(c[0], w.up * own, o[i][0] * before);
      o[i][1] = fma_(c[1], w.up * own, o[i][1] * before);
    }
    __syncwarp();
    if (more) ask_for_values(values, cache, slot);
    commit_copies();
    exponents = next_exponents;
  }
  if (g >= sharing) return;
  const int64_t at = (int64_t{blockIdx.y} * p.rows.heads + kv_head * sharing + g) * gridDim.z + blockIdx.z;
  float* const partial = p.partials + at * kPartial;
#pragma unroll
  for (int i = 0; i < 16; ++i) *reinterpret_cast<float2*>(partial + 8 * i + 2 * t) = {o[i][0], o[i][1]};
  if (t == 0) *reinterpret_cast<float2*>(partial + kHead) = {m, l};
}

/// Folds a row's spans, in order, for one head.
__global__ void __launch_bounds__(kHead) fold_spans_kernel(BlocksParams p) {
  after_earlier_kernels();
  const int64_t row = p.list == nullptr ? p.first + blockIdx.x : p.list[blockIdx.x];
  const int64_t head = blockIdx.y;
  const int d = static_cast<int>(threadIdx.x);
  const int spans = (p.rows.places.position[row] / 64 + kSpanBlocks) / kSpanBlocks;
  const float* const partials =
      p.partials + (blockIdx.x * p.rows.heads + head) * (p.blocks / kSpanBlocks) * kPartial;
  float m = -INFINITY, l = 0.0F, o = 0.0F;
#pragma unroll 8
  for (int s = 0; s < spans; ++s) {
    const float* const partial = partials + int64_t{s} * kPartial;
    fold(m, l, o, *reinterpret_cast<const float2*>(partial + kHead), partial[d]);
  }
  p.rows.out[row * p.rows.ld_out + head * kHead + d] = o / l;
}

/// The same for a leaf of a row, which is then rounded as round_held_rows() does it; a leaf that fails
/// becomes zeros.
__global__ void __launch_bounds__(kFoldedLeaf) fold_and_round_kernel(BlocksParams p) {
  after_earlier_kernels();
  __shared__ uint32_t largest_of[32];
  __shared__ int sums_of[32];
  const int64_t row = p.list == nullptr ? p.first + blockIdx.x : p.list[blockIdx.x];
  const int leaf = static_cast<int>(blockIdx.y);
  const int i = leaf * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);  // of the row
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int spans = (p.rows.places.position[row] / 64 + kSpanBlocks) / kSpanBlocks;
  const float* const partials =
      p.partials + (blockIdx.x * p.rows.heads + i / kHead) * (p.blocks / kSpanBlocks) * kPartial;
  float m = -INFINITY, l = 0.0F, o = 0.0F;
#pragma unroll 8
  for (int s = 0; s < spans; ++s) {
    const float* const partial = partials + int64_t{s} * kPartial;
    fold(m, l, o, *reinterpret_cast<const float2*>(partial + kHead), partial[i % kHead]);
  }
  const float x = o / l;
  p.rows.out[row * p.rows.ld_out + i] = x;
  const uint32_t largest = warp_max(magnitude_bits(x));
  if (lane == 0) largest_of[warp] = largest;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int of_leaf = ceil_exponent(float_from_bits(warp_max(lane < warps ? largest_of[lane] : 0U)));
  const int of_group = ceil_exponent(float_from_bits(max(largest_of[warp], largest_of[warp ^ 1])));
  const bool good = !exponent_fails(of_leaf);
  const int e = good ? of_leaf : 0;
  const int step = good ? max(of_group, e - 16) - 13 : 0;
  const int n = good ? static_cast<int>(round_plainly(x, step) * plain_power(-step)) : 0;
  const int sum = warp_sum(n);
  if (lane == 0) sums_of[warp] = sum;
  p.rounded.halves[row * p.rows.ld_out + half_slot(i)] =
      half_bits(static_cast<float>(n) * plain_power(step - e + 15 - i % 2 * 4));
  __syncthreads();
  if (lane == 0 && warp % 2 == 0) {
    const int64_t groups = p.rows.ld_out / kBlock;
    p.rounded.sums[row * groups + i / kBlock] =
        static_cast<float>(sums_of[warp] + sums_of[warp + 1]) * plain_power(step - e - 9);
  }
  if (threadIdx.x > 0) return;
  p.rounded.leaf_units[row * p.leaves + leaf] = plain_power(e + 9);
  if (!good) p.rows.failed[row] = 1;
}

/// The same from blocks, which are folded into spans first; those are apart, so groups of threads take them
/// side by side.
__global__ void __launch_bounds__(kFolders* kHead) fold_blocks_kernel(BlocksParams p) {
  after_earlier_kernels();
  __shared__ float o_of[kSpansHeld][kHead];
  __shared__ float2 of[kSpansHeld];  // m, l
  const int64_t row = p.list == nullptr ? p.first + blockIdx.x : p.list[blockIdx.x];
  const int64_t head = blockIdx.y;
  const int d = static_cast<int>(threadIdx.x) % kHead;
  const int group = static_cast<int>(threadIdx.x) / kHead;
  const int blocks = p.rows.places.position[row] / 64 + 1;
  const int spans = (blocks + kSpanBlocks - 1) / kSpanBlocks;
  const float* const partials = p.partials + (blockIdx.x * p.rows.heads + head) * p.blocks * kPartial;
  float m = -INFINITY, l = 0.0F, o = 0.0F;
#pragma unroll 1
  for (int first = 0; first < spans; first += kSpansHeld) {
    const int here = min(kSpansHeld, spans - first);
    __syncthreads();
#pragma unroll 2
    for (int s = group; s < here; s += kFolders) {
      const int first_block = (first + s) * kSpanBlocks;
      float block_o[kSpanBlocks];
      float2 block[kSpanBlocks];  // m, l
#pragma unroll
      for (int b = 0; b < kSpanBlocks; ++b) {
        const float* const partial = partials + int64_t{min(first_block + b, blocks - 1)} * kPartial;
        block_o[b] = partial[d];
        block[b] = *reinterpret_cast<const float2*>(partial + kHead);
      }
      float span_m = -INFINITY, span_l = 0.0F, span_o = 0.0F;
#pragma unroll
      for (int b = 0; b < kSpanBlocks; ++b) {
        if (first_block + b < blocks) fold(span_m, span_l, span_o, block[b], block_o[b]);
      }
      o_of[s][d] = span_o;
      if (d == 0) of[s] = {span_m, span_l};
    }
    __syncthreads();
    if (group > 0) continue;
#pragma unroll 4
    for (int s = 0; s < here; ++s) fold(m, l, o, of[s], o_of[s][d]);
  }
  if (group == 0) p.rows.out[row * p.rows.ld_out + head * kHead + d] = o / l;
}

constexpr int kRoundWarps = 8;

__global__ void __launch_bounds__(kRoundWarps * 32) round_queries_kernel(RoundQueriesParams p) {
  after_earlier_kernels();
  const int64_t index = int64_t{blockIdx.x} * kRoundWarps + threadIdx.x / 32;
  if (index >= int64_t{p.rows} * p.heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const from = p.qkv + index / p.heads * p.ld + index % p.heads * kHead + lane;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = from[32 * i];
  put_query(p.queries.halves + index * kHead, p.queries.powers + index, x);
}

}  // namespace

void round_queries(Launcher& launcher, const RoundQueriesParams& params) {
  const int64_t warps = int64_t{params.rows} * params.heads;
  launcher.add(round_queries_kernel, dim3(static_cast<unsigned>((warps + kRoundWarps - 1) / kRoundWarps)),
               dim3(kRoundWarps * 32), params);
}

void attention_blocks(Launcher& launcher, const BlocksParams& params) {
  const auto rows = static_cast<unsigned>(params.rows.rows);
  launcher.add(blocks_kernel,
               dim3(static_cast<unsigned>(params.rows.cache.heads), rows,
                    static_cast<unsigned>(params.blocks / params.each)),
               dim3(32), params, attention_shared(params.each));
  const dim3 results(rows, static_cast<unsigned>(params.rows.heads));
  if (params.rounded.halves != nullptr) {
    const auto columns = static_cast<unsigned>(params.rows.ld_out / params.leaves);
    launcher.add(fold_and_round_kernel, dim3(rows, static_cast<unsigned>(params.leaves)), dim3(columns),
                 params);
  } else if (params.each > 1) {
    launcher.add(fold_spans_kernel, results, dim3(kHead), params);
  } else {
    launcher.add(fold_blocks_kernel, results, dim3(kFolders * kHead), params);
  }
}

}  // namespace tercet::cuda
