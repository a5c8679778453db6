// What both forms of attention share.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/block.cuh"

namespace tercet::cuda {

constexpr float kScale = 0x1.0527dcp-3F;  // fl(log2(e)/√128)

__device__ inline uint32_t head_max(uint32_t bits, float* shared) {
  const uint32_t largest = warp_max(bits);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = float_from_bits(largest);
  __syncthreads();
  uint32_t all = 0;
  for (int w = 0; w < 4; ++w) all = max(all, float_bits(shared[w]));
  __syncthreads();
  return all;
}

struct HeadNumber {
  int n;         // this thread's value is n·2^(exponent − bits)
  int exponent;  // of the head
  bool finite;
};

__device__ inline HeadNumber round_head(float x, float size, int bits) {
  HeadNumber out;
  const int e = ceil_exponent(size);
  out.finite = !exponent_fails(e);
  out.exponent = out.finite ? e : 0;
  const int step = out.exponent - bits;
  out.n = out.finite ? static_cast<int>(round_to_step(x, step) * power_of_two(-step)) : 0;
  return out;
}

/// q and k: by their norm (rule 8). 128 threads, a value each.
__device__ inline HeadNumber round_by_norm(float x, float* shared) {
  const float largest = float_from_bits(head_max(magnitude_bits(x), shared));
  const int e = ceil_exponent(largest);
  float size = largest;
  if (!exponent_fails(e)) {
    const float scaled = x * power_of_two(-e);
    size = power_of_two(e) * sqrt_(lane_tree<kHead>(fma_(scaled, scaled, 0.0F), shared)) * (1.0F + 0x1p-9F);
  }
  return round_head(x, size, 12);
}

/// v: by its largest value.
__device__ inline HeadNumber round_by_largest(float x, float* shared) {
  return round_head(x, float_from_bits(head_max(magnitude_bits(x), shared)), 10);
}

/// 2^difference for a whole difference ≤ 0; below 2^-60 it counts as 0.
__device__ inline float fold_factor(float difference) {
  return difference < -60.0F ? 0.0F : power_of_two(static_cast<int>(difference));
}

}  // namespace tercet::cuda
