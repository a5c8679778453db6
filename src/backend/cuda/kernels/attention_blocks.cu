#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/attention_blocks.h"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/weighing.cuh"

namespace tercet::cuda {
namespace {

// Query heads are rows 0 to 7 of mma.m16n8k16, rows 8 to 15 are empty; keys, then dimensions, are its
// columns. A lane holds of head lane/4 the keys 8j + lane%4·2 + {0, 1}: the order of rule 8's sums.

constexpr int kKeyBytes = 64 * kHead * 2;
constexpr int kSpansHeld = 64;  // that are folded at a time
constexpr int kFolders = 4;     // groups of kHead threads

/// By the calling warp: a block's keys, 64 rows of 256 bytes, and values, 128 rows of 128, to shared memory;
/// pieces of 16 bytes lie at piece ^ row % 8.
__device__ inline void ask_for_block(uint32_t shared, const CacheView& cache, int64_t slot) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint16_t* const keys = cache.keys + slot * kHead + lane * 8;
  const uint16_t* const values = cache.values + slot * kHead + lane * 8;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = 2 * i + lane / 16;
    copy_async(shared + row * 256 + ((lane % 16) ^ (row & 7)) * 16, keys + i * 256);
  }
  commit_copies();
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = 4 * i + lane / 8;
    copy_async(shared + kKeyBytes + row * 128 + ((lane % 8) ^ (row & 7)) * 16, values + i * 256);
  }
  commit_copies();
}

__device__ inline void load_matrices(uint32_t (&b)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at)
               : "memory");
}

__global__ void __launch_bounds__(32) blocks_kernel(BlocksParams p) {
  after_earlier_kernels();
  extern __shared__ __align__(128) uint8_t memory[];
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const int block = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int64_t row = p.list == nullptr ? p.first + blockIdx.z : p.list[blockIdx.z];
  const int position = p.rows.places.position[row];
  const int visible = position + 1 - block * 64;
  if (visible <= 0) return;
  const CacheView& cache = p.rows.cache;
  const int page = p.rows.places.pages[p.rows.places.first_page[row] + block];
  const int64_t slot = cache.slot(p.rows.layer, page, kv_head);
  ask_for_block(shared, cache, slot);
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane / 4;
  const int t = lane % 4;
  const int sharing = p.rows.heads / cache.heads;
  const int64_t head = row * p.rows.heads + kv_head * sharing + min(g, sharing - 1);
  uint4 q[4];
  float q_power = p.queries.powers[head];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    q[i] = reinterpret_cast<const uint4*>(p.queries.halves + head * kHead + 32 * t)[i];
  uint16_t key_exponents[8], value_exponents[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    key_exponents[j] = *reinterpret_cast<const uint16_t*>(cache.key_exponents + slot + 8 * j + 2 * t);
    value_exponents[j] = *reinterpret_cast<const uint16_t*>(cache.value_exponents + slot + 8 * j + 2 * t);
  }
  if (q_power < 0.0F) {
    q_power = 1.0F;
    p.rows.failed[row] = 1;
  }
  wait_for_copies<1>();
  __syncwarp();

  float scores[16];
  const int in_tile = lane % 8;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t b[4];
      load_matrices(b, shared + (8 * j + in_tile) * 256 + ((4 * i + lane / 8) ^ in_tile) * 16);
      mma_fp16(c, q[i].x, 0, q[i].y, 0, b[0], b[1]);
      mma_fp16(c, q[i].z, 0, q[i].w, 0, b[2], b[3]);
    }
    scores[2 * j] = c[0];
    scores[2 * j + 1] = c[1];
  }
  const auto power_of = [](uint16_t pair, int e) {
    return plain_power(static_cast<int8_t>(e == 0 ? pair & 255 : pair >> 8));
  };
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    scores[i] = (scores[i] * q_power) * (kScale * power_of(key_exponents[i / 2], i % 2));
    if (i / 2 * 8 + 2 * t + i % 2 >= visible) scores[i] = -INFINITY;
  }
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = fmaxf(largest, scores[i]);
  const float m = rintf(quad_max(largest));
  float l = 0.0F;
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float weight = weight_of(scores[i], m);
    scores[i] = weight * power_of(value_exponents[i / 2], i % 2);
    l = l + weight;
    sum = sum + scores[i];
  }
  l = quad_sum(l);
  const int z = weight_exponent(quad_sum(sum));
  const float down = plain_power(-z);
  const float up = plain_power(z);
  uint32_t weights[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) weights[j] = half_pair(scores[2 * j] * down, scores[2 * j + 1] * down);

  wait_for_copies<0>();
  __syncwarp();
  const int64_t slot_out = (int64_t{blockIdx.z} * p.rows.heads + kv_head * sharing + g) * p.blocks + block;
  float* const partial = p.partials + slot_out * kPartial;
#pragma unroll 4
  for (int i = 0; i < 16; ++i) {
    float o[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t b[4];
      load_matrices(b, shared + kKeyBytes + (8 * i + in_tile) * 128 + ((4 * half + lane / 8) ^ in_tile) * 16);
      mma_fp16(o, weights[4 * half], 0, weights[4 * half + 1], 0, b[0], b[1]);
      mma_fp16(o, weights[4 * half + 2], 0, weights[4 * half + 3], 0, b[2], b[3]);
    }
    if (g < sharing) *reinterpret_cast<float2*>(partial + 8 * i + 2 * t) = {o[0] * up, o[1] * up};
  }
  if (t == 0 && g < sharing) *reinterpret_cast<float2*>(partial + kHead) = {m, l};
}

/// Folds the blocks of a row and head into spans, and those, in order. Spans are apart, so groups of threads
/// take them side by side.
__global__ void __launch_bounds__(kFolders* kHead) fold_kernel(BlocksParams p) {
  after_earlier_kernels();
  __shared__ float o_of[kSpansHeld][kHead], m_of[kSpansHeld], l_of[kSpansHeld];
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
      float span_m = -INFINITY, span_l = 0.0F, span_o = 0.0F;
      float block_o[kSpanBlocks];
      float2 block[kSpanBlocks];  // m, l
#pragma unroll
      for (int b = 0; b < kSpanBlocks; ++b) {
        const float* const partial = partials + int64_t{min(first_block + b, blocks - 1)} * kPartial;
        block_o[b] = partial[d];
        block[b] = *reinterpret_cast<const float2*>(partial + kHead);
      }
#pragma unroll
      for (int b = 0; b < kSpanBlocks; ++b) {
        if (first_block + b >= blocks) break;
        const float next = fmaxf(span_m, block[b].x);
        const float before = short_factor(span_m - next);
        const float own = short_factor(block[b].x - next);
        span_o = span_o * before + block_o[b] * own;
        span_l = span_l * before + block[b].y * own;
        span_m = next;
      }
      o_of[s][d] = span_o;
      if (d == 0) {
        m_of[s] = span_m;
        l_of[s] = span_l;
      }
    }
    __syncthreads();
    if (group > 0) continue;
#pragma unroll 4
    for (int s = 0; s < here; ++s) {
      const float next = fmaxf(m, m_of[s]);
      const float before = short_factor(m - next);
      const float own = short_factor(m_of[s] - next);
      o = o * before + o_of[s][d] * own;
      l = l * before + l_of[s] * own;
      m = next;
    }
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
  launcher.add(
      blocks_kernel,
      dim3(static_cast<unsigned>(params.blocks), static_cast<unsigned>(params.rows.cache.heads), rows),
      dim3(32), params, 2 * kKeyBytes);
  launcher.add(fold_kernel, dim3(rows, static_cast<unsigned>(params.rows.heads)), dim3(kFolders * kHead),
               params);
}

}  // namespace tercet::cuda
