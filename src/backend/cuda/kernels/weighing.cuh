// The arithmetic of rule 8 in few instructions, for the fast forms of attention.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/halves.cuh"

namespace tercet::cuda {

/// As fold_factor().
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

/// p of a key with t = score, −∞ where it is not visible; m: the block's, −∞ where none is.
__device__ inline float weight_of(float score, float m) {
  const float whole = rintf(score);
  const float below = whole - m;
  // 2^below by its exponent: 1.5·2^23 + below holds below in its low bits.
  const uint32_t power = float_bits(below + 12582912.0F) << 23;
  const float p = float_from_bits(float_bits(exp2_of_fraction(score - whole)) + power);
  return below >= -100.0F ? p : 0.0F;
}

/// z + 10, Z being the sum: divided by 2^(z + 10), P's least step is that of fp16, 2^-24, and it has 11 bits
/// as well, so that a conversion rounds it.
__device__ inline int weight_exponent(float sum) { return ceil_exponent(sum * (1.0F + 0x1p-7F)) + 10; }

__device__ inline uint32_t half_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAll, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAll, x, 2));
}
/// (a₀ + a₁) + (a₂ + a₃) of the four lanes of a row.
__device__ inline float quad_sum(float a) {
  a = a + __shfl_xor_sync(kAll, a, 1);
  return a + __shfl_xor_sync(kAll, a, 2);
}

/// The tree of rule 5 over 128 values, of which lane l holds l, l + 32, l + 64 and l + 96.
__device__ inline float head_tree(const float (&x)[4]) { return whole_tree((x[0] + x[2]) + (x[1] + x[3])); }

/// Σ (x·scale)², likewise.
__device__ inline float squares(const float (&x)[4], float scale) {
  float squared[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) squared[i] = fma_(x[i] * scale, x[i] * scale, 0.0F);
  return head_tree(squared);
}

__device__ inline float largest_of(const float (&x)[4]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, magnitude_bits(x[i]));
  return float_from_bits(warp_max(largest));
}

/// The size by which a query or a key is rounded: its norm, a little more.
__device__ inline float size_of(const float (&x)[4]) {
  const float largest = largest_of(x);
  const int e = ceil_exponent(largest);
  if (exponent_fails(e)) return largest;
  return plain_power(e) * sqrt_(squares(x, plain_power(-e))) * (1.0F + 0x1p-9F);
}

/// Where dimension d of a query lies in Queries.
__device__ inline int query_slot(int d) { return d % 8 / 2 * 32 + d / 16 * 4 + d / 8 % 2 * 2 + d % 2; }

/// A rounded query as Queries has it.
__device__ inline void put_query(uint16_t* halves, float* power, const float (&x)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float size = size_of(x);
  HeadNumber n{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    n = round_head(x[i], size, 12);
    halves[query_slot(lane + 32 * i)] = half_bits(static_cast<float>(n.n) * 0x1p-12F);
  }
  if (lane == 0) *power = n.finite ? power_of_two(n.exponent) : -1.0F;
}

}  // namespace tercet::cuda
