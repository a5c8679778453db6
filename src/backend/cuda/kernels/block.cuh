// Sums and maxima over a block or a warp, in the orders of the rules.
#pragma once

#include <cstdint>

#include "ops/exact_math.h"

namespace tercet::cuda {

// A kernel may begin while earlier ones still run (Launcher).

/// Kernels that follow may begin once all blocks have said so.
__device__ inline void let_later_kernels_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// From here on all that earlier kernels wrote is there. Before, a kernel reads only what none writes:
/// weights, where rows are.
__device__ inline void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Both, as the first statement of a kernel that has nothing to do in between.
__device__ inline void after_earlier_kernels() {
  let_later_kernels_begin();
  wait_for_earlier_kernels();
}

constexpr int kRowThreads = 256;  // the lanes of rule 5
constexpr unsigned kAll = 0xffffffffU;

__device__ inline float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ inline void store_four(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

__device__ inline uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7fffffffU; }

/// The tree of rule 5 over the first 32 lanes' partial sums; the result is in lane 0.
__device__ inline float warp_tree(float x) {
  for (int step = 16; step >= 1; step /= 2) x = x + __shfl_down_sync(kAll, x, step);
  return x;
}

/// The same, but that all lanes have the result: a step's two summands are those of the tree, in one order or
/// the other.
__device__ inline float whole_tree(float x) {
#pragma unroll
  for (int apart = 16; apart >= 1; apart /= 2) x = x + __shfl_xor_sync(kAll, x, apart);
  return x;
}

/// The tree of rule 5 over a row's 256 lanes, of which a warp's lane l holds l, l + 32, …
__device__ inline float row_tree(const float (&lanes)[8]) {
  const float even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
  const float odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
  return whole_tree(even + odd);
}

/// The tree of rule 5 over a block of 256 threads, or of 128, lanes 128 to 255 being empty; `shared` has as
/// many floats. Every thread gets the sum.
template <int kThreads>
__device__ inline float lane_tree(float lane, float* shared) {
  const int j = static_cast<int>(threadIdx.x);
  shared[j] = lane;
  __syncthreads();
  for (int step = kThreads / 2; step >= 32; step /= 2) {
    if (j < step) shared[j] = shared[j] + shared[j + step];
    __syncthreads();
  }
  if (j < 32) {
    const float sum = warp_tree(shared[j]);
    if (j == 0) shared[0] = sum;
  }
  __syncthreads();
  const float sum = shared[0];
  __syncthreads();
  return sum;
}

__device__ inline uint32_t warp_max(uint32_t x) { return __reduce_max_sync(kAll, x); }
__device__ inline int32_t warp_sum(int32_t x) { return __reduce_add_sync(kAll, x); }

}  // namespace tercet::cuda
