#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/mma.cuh"

namespace tercet::cuda {
namespace {

constexpr int kWarps = kSpanBlocks;  // a warp a block of 64 keys

constexpr int kKeyRow = 68;  // floats of a head's 64 keys, so that heads lie in different banks

struct Scratch {
  alignas(16) uint16_t q[kMaxSharing][kHead];  // divided by 2^E
  int q_exponent[kMaxSharing];
  float m[kWarps][kMaxSharing], l[kWarps][kMaxSharing];
  int8_t key_exponents[kWarps][64], value_exponents[kWarps][64];
  union {
    struct {
      float scores[kWarps][kMaxSharing][kKeyRow];             // q·k, then t, then p′
      alignas(16) uint16_t weights[kWarps][kMaxSharing][64];  // P divided by 2^z
    };
    float o[kWarps][kMaxSharing][kHead];
  };
};

/// This warp's query heads, rounded (rule 8); a lane holds dimensions lane, lane + 32, + 64, + 96.
__device__ bool round_queries(const SpanParams& s, int64_t row, int kv_head, int sharing, Scratch& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool all_finite = true;
#pragma unroll 1
  for (int head = static_cast<int>(threadIdx.x) / 32; head < kMaxSharing; head += kWarps) {
    float x[4] = {};
    if (head < sharing) {
      const float* from = s.rows.qkv + row * s.rows.ld + (kv_head * sharing + head) * kHead;
      for (int i = 0; i < 4; ++i) x[i] = from[lane + 32 * i];
    }
    uint32_t largest = 0;
    for (const float value : x) largest = max(largest, magnitude_bits(value));
    float size = float_from_bits(warp_max(largest));
    const int e = ceil_exponent(size);
    if (!exponent_fails(e)) {
      const float down = power_of_two(-e);
      float squares[4];
      for (int i = 0; i < 4; ++i) squares[i] = fma_(x[i] * down, x[i] * down, 0.0F);
      const float sum = warp_tree((squares[0] + squares[2]) + (squares[1] + squares[3]));
      size = __shfl_sync(kAll, power_of_two(e) * sqrt_(sum) * (1.0F + 0x1p-9F), 0);
    }
    int exponent = 0;
    for (int i = 0; i < 4; ++i) {
      const HeadNumber n = round_head(x[i], size, 12);
      all_finite = all_finite && n.finite;
      exponent = n.exponent;
      shared.q[head][lane + 32 * i] = half_bits(static_cast<float>(n.n) * 0x1p-12F);
    }
    if (lane == 0) shared.q_exponent[head] = exponent;
  }
  return all_finite;
}

/// q·k of this warp's block, exact, in units of 2^(E of q + E of k), to scores[head][key].
__device__ void multiply_keys(const uint16_t* keys, const Scratch& shared, float (*scores)[kKeyRow]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  uint4 q[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) q[j] = *reinterpret_cast<const uint4*>(&shared.q[g][32 * t + 8 * j]);
  // The next tile's keys are on their way while one is multiplied.
  uint4 low[2][4], high[2][4];
  const auto load = [&](int tile) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      low[tile % 2][j] = reinterpret_cast<const uint4*>(keys + (16 * tile + g) * kHead + 32 * t)[j];
      high[tile % 2][j] = reinterpret_cast<const uint4*>(keys + (16 * tile + g + 8) * kHead + 32 * t)[j];
    }
  };
  load(0);
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    if (tile < 3) load(tile + 1);
    float c[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 a = low[tile % 2][j];
      const uint4 b = high[tile % 2][j];
      mma_fp16(c, a.x, b.x, a.y, b.y, q[j].x, q[j].y);
      mma_fp16(c, a.z, b.z, a.w, b.w, q[j].z, q[j].w);
    }
    scores[2 * t][16 * tile + g] = c[0];
    scores[2 * t + 1][16 * tile + g] = c[1];
    scores[2 * t][16 * tile + g + 8] = c[2];
    scores[2 * t + 1][16 * tile + g + 8] = c[3];
  }
}

/// (a₀ + a₁) + (a₂ + a₃) of the four lanes of a head.
__device__ inline float quad_sum(float a) {
  a = a + __shfl_xor_sync(kAll, a, 1);
  return a + __shfl_xor_sync(kAll, a, 2);
}

/// 2^e for −126 ≤ e ≤ 127.
__device__ inline float plain_power(int e) { return __int_as_float((e + 127) << 23); }

/// As fold_factor(), in fewer instructions.
__device__ inline float short_factor(float difference) {
  return difference < -60.0F ? 0.0F : plain_power(static_cast<int>(difference));
}

/// exp2_() for |f| ≤ ½.
__device__ inline float exp2_of_fraction(float f) {
  float p = 0x1.44138ap-13F;
  p = fma_(p, f, 0x1.5f0890p-10F);
  p = fma_(p, f, 0x1.3b2a54p-7F);
  p = fma_(p, f, 0x1.c6af6cp-5F);
  p = fma_(p, f, 0x1.ebfbe0p-3F);
  p = fma_(p, f, 0x1.62e430p-1F);
  return fma_(p, f, 1.0F);
}

/// From q·k to P: lane 4·head + t has the keys that aₜ of rule 8 adds, in its order. Returns z + 10 of the
/// head: divided by 2^(z + 10), P's least step is that of fp16, 2^-24, and it has 11 bits as well.
__device__ int weigh_keys(int visible, int warp, Scratch& shared) {
  const int head = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const float* from = shared.scores[warp][head];
  const auto key_of = [t](int i) { return i / 2 * 8 + 2 * t + i % 2; };
  const float q_power = plain_power(shared.q_exponent[head]);
  float scores[16];
  float m = -INFINITY;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = key_of(i);
    const float factor = kScale * plain_power(shared.key_exponents[warp][key]);
    scores[i] = (from[key] * q_power) * factor;
    if (key >= visible) scores[i] = -INFINITY;
    m = fmaxf(m, scores[i]);
  }
  m = fmaxf(m, __shfl_xor_sync(kAll, m, 1));
  m = rintf(fmaxf(m, __shfl_xor_sync(kAll, m, 2)));
  float l = 0.0F;
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float whole = rintf(scores[i]);
    const float below = whole - m;
    // 2^below by its exponent: 1.5·2^23 + below holds below in its low bits.
    const uint32_t power = float_bits(below + 12582912.0F) << 23;
    float p = float_from_bits(float_bits(exp2_of_fraction(scores[i] - whole)) + power);
    p = below >= -100.0F ? p : 0.0F;
    scores[i] = p * plain_power(shared.value_exponents[warp][key_of(i)]);
    l = l + p;
    sum = sum + scores[i];
  }
  l = quad_sum(l);
  const int z = ceil_exponent(quad_sum(sum) * (1.0F + 0x1p-7F));
  const float down = plain_power(-z - 10);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    *reinterpret_cast<__half2*>(&shared.weights[warp][head][8 * j + 2 * t]) =
        __floats2half2_rn(scores[2 * j] * down, scores[2 * j + 1] * down);
  }
  if (t == 0) {
    shared.m[warp][head] = m;
    shared.l[warp][head] = l;
  }
  return z + 10;
}

/// One block of 64 keys for all heads: m, l and O into `shared`.
__device__ void attend_block(const SpanParams& s, int64_t slot, int visible, int warp, Scratch& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const CacheView& cache = s.rows.cache;
  multiply_keys(cache.keys + slot * kHead, shared, shared.scores[warp]);
  __syncwarp();
  // The first values come while the keys are weighed.
  constexpr int kAhead = 3;
  uint4 values[kAhead + 1][4];
  const auto load = [&](int tile) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      values[tile % (kAhead + 1)][j] = reinterpret_cast<const uint4*>(
          cache.values + slot * kHead + (16 * tile + g + j / 2 * 8) * 64 + 16 * t)[j % 2];
    }
  };
#pragma unroll
  for (int tile = 0; tile < kAhead; ++tile) load(tile);
  const int z = weigh_keys(visible, warp, shared);
  const float up[2] = {power_of_two(__shfl_sync(kAll, z, 8 * t)),
                       power_of_two(__shfl_sync(kAll, z, 8 * t + 4))};
  __syncwarp();
  const auto* mine = reinterpret_cast<const uint4*>(&shared.weights[warp][g][16 * t]);
  const uint4 weights[2] = {mine[0], mine[1]};
  float o[8][4] = {};
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
    if (tile + kAhead < 8) load(tile + kAhead);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 a = values[tile % (kAhead + 1)][j];
      const uint4 b = values[tile % (kAhead + 1)][2 + j];
      mma_fp16(o[tile], a.x, b.x, a.y, b.y, weights[j].x, weights[j].y);
      mma_fp16(o[tile], a.z, b.z, a.w, b.w, weights[j].z, weights[j].w);
    }
  }
  __syncthreads();  // the scores' memory becomes that of O
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared.o[warp][2 * t + i % 2][16 * tile + g + i / 2 * 8] = o[tile][i] * up[i % 2];
    }
  }
}

/// While the queries are rounded, the block's bytes come nearer.
__device__ void ask_for_block(const CacheView& cache, int64_t slot, int warp, Scratch& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 64 * kHead * 2 / 4096; ++i) {  // 32 lanes · 128 bytes
    asm volatile("prefetch.global.L2 [%0];" ::"l"(cache.keys + slot * kHead + (32 * i + lane) * 64));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(cache.values + slot * kHead + (32 * i + lane) * 64));
  }
#pragma unroll
  for (int i = lane; i < 64; i += 32) {
    shared.key_exponents[warp][i] = cache.key_exponents[slot + i];
    shared.value_exponents[warp][i] = cache.value_exponents[slot + i];
  }
}

__global__ void __launch_bounds__(kWarps * 32) span_kernel(SpanParams s) {
  after_earlier_kernels();
  __shared__ Scratch shared;
  const int span = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int64_t row = s.list == nullptr ? blockIdx.z : s.list[blockIdx.z];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int position = s.rows.places.position[row];
  const int blocks = position / 64 + 1;
  if (span * kSpanBlocks >= blocks) return;
  const int sharing = s.rows.heads / s.rows.cache.heads;
  const int here = min(kSpanBlocks, blocks - span * kSpanBlocks);
  const int b = span * kSpanBlocks + warp;
  int64_t slot = 0;
  if (warp < here) {
    const int page = s.rows.places.pages[s.rows.places.first_page[row] + b];
    slot = s.rows.cache.slot(s.rows.layer, page, kv_head);
    ask_for_block(s.rows.cache, slot, warp, shared);
  }
  const bool finite = round_queries(s, row, kv_head, sharing, shared);
  if (!finite && span == 0) s.rows.failed[row] = 1;
  __syncthreads();
  if (warp < here) {
    attend_block(s, slot, min(64, position + 1 - b * 64), warp, shared);
  } else {
    __syncthreads();  // as attend_block has one
  }
  __syncthreads();
  const int d = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int head = 0; head < sharing; ++head) {
    float m = shared.m[0][head], l = shared.l[0][head], o = shared.o[0][head][d];
#pragma unroll 1
    for (int w = 1; w < here; ++w) {
      const float next = fmaxf(m, shared.m[w][head]);
      const float a = short_factor(m - next);
      const float b = short_factor(shared.m[w][head] - next);
      o = o * a + shared.o[w][head][d] * b;
      l = l * a + shared.l[w][head] * b;
      m = next;
    }
    const int64_t q_head = kv_head * sharing + head;
    if (blocks <= kSpanBlocks) {
      s.rows.out[row * s.rows.ld_out + q_head * kHead + d] = o / l;
      continue;
    }
    float* partial = s.partials + ((blockIdx.z * s.rows.heads + q_head) * s.spans + span) * kPartial;
    partial[d] = o;
    if (d == 0) {
      partial[kHead] = m;
      partial[kHead + 1] = l;
    }
  }
}

/// Folds the spans of a row and head, in order.
__global__ void __launch_bounds__(kHead) fold_kernel(SpanParams s) {
  after_earlier_kernels();
  const int64_t row = s.list == nullptr ? blockIdx.x : s.list[blockIdx.x];
  const int64_t head = blockIdx.y;
  const int d = static_cast<int>(threadIdx.x);
  const int blocks = s.rows.places.position[row] / 64 + 1;
  const int spans = (blocks + kSpanBlocks - 1) / kSpanBlocks;
  if (spans == 1) return;
  const float* const partial = s.partials + (blockIdx.x * s.rows.heads + head) * s.spans * kPartial;
  // The factors first, a piece of the spans at a time, so that O's loads wait for nothing.
  __shared__ float m_of[kHead], l_of[kHead], before[kHead], own[kHead];
  float m = -INFINITY, l = 0.0F, o = 0.0F;
#pragma unroll 1
  for (int first = 0; first < spans; first += kHead) {
    const int here = min(kHead, spans - first);
    __syncthreads();
    if (d < here) {
      m_of[d] = partial[(first + d) * kPartial + kHead];
      l_of[d] = partial[(first + d) * kPartial + kHead + 1];
    }
    __syncthreads();
    if (d < here) {
      float earlier = m;
#pragma unroll 4
      for (int i = 0; i < d; ++i) earlier = fmaxf(earlier, m_of[i]);
      const float next = fmaxf(earlier, m_of[d]);
      before[d] = short_factor(earlier - next);
      own[d] = short_factor(m_of[d] - next);
    }
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < here; ++i) {
      o = o * before[i] + partial[(first + i) * kPartial + d] * own[i];
      l = l * before[i] + l_of[i] * own[i];
      m = fmaxf(m, m_of[i]);
    }
  }
  s.rows.out[row * s.rows.ld_out + head * kHead + d] = o / l;
}

}  // namespace

void attention_spans(Launcher& launcher, const SpanParams& params) {
  const AttentionParams& rows = params.rows;
  launcher.add(span_kernel,
               dim3(static_cast<unsigned>(params.spans), static_cast<unsigned>(rows.cache.heads),
                    static_cast<unsigned>(rows.rows)),
               dim3(kWarps * 32), params);
  if (params.spans == 1) return;
  launcher.add(fold_kernel, dim3(static_cast<unsigned>(rows.rows), static_cast<unsigned>(rows.heads)),
               dim3(kHead), params);
}

}  // namespace tercet::cuda
