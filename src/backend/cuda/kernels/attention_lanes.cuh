// A block of 64 keys as the lanes of an mma hold it: query heads are rows 0 to 7 of m16n8k16, rows 8 to 15
// are empty; keys, then dimensions, are its columns. A lane holds of head lane/4 the keys 8j + lane%4·2 + {0,
// 1}: the order of rule 8's sums.
#pragma once

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/weighing.cuh"

namespace tercet::cuda {

/// The exponents of a lane's 16 keys or values of a block, two in each word.
struct Exponents {
  uint16_t keys[8], values[8];
};

__device__ inline Exponents exponents_of(const CacheView& cache, int64_t slot) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  Exponents out;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    out.keys[j] = *reinterpret_cast<const uint16_t*>(cache.key_exponents + slot + 8 * j + 2 * t);
    out.values[j] = *reinterpret_cast<const uint16_t*>(cache.value_exponents + slot + 8 * j + 2 * t);
  }
  return out;
}

__device__ inline float power_of(const uint16_t (&pairs)[8], int i) {
  const uint16_t pair = pairs[i / 2];
  return plain_power(static_cast<int8_t>(i % 2 == 0 ? pair & 255 : pair >> 8));
}

/// What a block comes to, of a lane's head.
struct Weighed {
  float m, l;
  float up;  // 2^(z + 10)
  uint32_t weights[8];
};

/// q·k, in c[0] and c[1], of keys 8·j + lane%4·2 + {0, 1} of a block whose keys lie at `keys`: 64 rows of 256
/// bytes, pieces of 16 bytes at piece ^ row % 8. q: as Queries has it, 32·(lane%4) and on.
__device__ inline void multiply_keys(float (&c)[4], uint32_t keys, int j, const uint4 (&q)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_tile = lane % 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t b[4];
    load_matrices(b, keys + (8 * j + in_tile) * 256 + ((4 * i + lane / 8) ^ in_tile) * 16);
    mma_fp16(c, q[i].x, 0, q[i].y, 0, b[0], b[1]);
    mma_fp16(c, q[i].z, 0, q[i].w, 0, b[2], b[3]);
  }
}

/// P·V, in c[0] and c[1], of dimensions 8·i + lane%4·2 + {0, 1}; values: 128 rows of 128 bytes, likewise.
__device__ inline void multiply_values(float (&c)[4], uint32_t values, int i, const uint32_t (&weights)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_tile = lane % 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[4];
    load_matrices(b, values + (8 * i + in_tile) * 128 + ((4 * half + lane / 8) ^ in_tile) * 16);
    mma_fp16(c, weights[4 * half], 0, weights[4 * half + 1], 0, b[0], b[1]);
    mma_fp16(c, weights[4 * half + 2], 0, weights[4 * half + 3], 0, b[2], b[3]);
  }
}

__device__ inline Weighed weigh(float (&scores)[16], const Exponents& exponents, float q_power, int visible) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  Weighed out;
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    scores[i] = (scores[i] * q_power) * (kScale * power_of(exponents.keys, i));
    if (i / 2 * 8 + 2 * t + i % 2 >= visible) scores[i] = -INFINITY;
    largest = fmaxf(largest, scores[i]);
  }
  out.m = rintf(quad_max(largest));
  float l = 0.0F;
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float weight = weight_of(scores[i], out.m);
    scores[i] = weight * power_of(exponents.values, i);
    l = l + weight;
    sum = sum + scores[i];
  }
  out.l = quad_sum(l);
  const int z = weight_exponent(quad_sum(sum));
  out.up = plain_power(z);
  const float down = plain_power(-z);
#pragma unroll
  for (int j = 0; j < 8; ++j) out.weights[j] = half_pair(scores[2 * j] * down, scores[2 * j + 1] * down);
  return out;
}

/// The next m, l and O join those before (rule 8).
__device__ inline void fold(float& m, float& l, float& o, float2 next, float next_o) {
  const float largest = fmaxf(m, next.x);
  const float before = short_factor(m - largest);
  const float own = short_factor(next.x - largest);
  o = o * before + next_o * own;
  l = l * before + next.y * own;
  m = largest;
}

/// The same for two dimensions.
__device__ inline void fold(float& m, float& l, float2& o, float2 next, float2 next_o) {
  const float largest = fmaxf(m, next.x);
  const float before = short_factor(m - largest);
  const float own = short_factor(next.x - largest);
  o = {o.x * before + next_o.x * own, o.y * before + next_o.y * own};
  l = l * before + next.y * own;
  m = largest;
}

}  // namespace tercet::cuda
