// Rounding one row for a product (rules 1 and 2), by a block of 256 threads.
#pragma once

#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/views.h"

namespace tercet::cuda {

/// Which row of Rounded a block writes, and how.
struct RoundedRow {
  int16_t* numbers;  // [k]; for float weights the bits of fp16; or
  int8_t* planes;    // [2][k]
  UnitSum* units;    // [groups]
};

__device__ inline RoundedRow rounded_row(const Rounded& out, int64_t row, int k, int groups) {
  return {out.numbers == nullptr ? nullptr : out.numbers + row * k,
          out.planes == nullptr ? nullptr : out.planes + row * 2 * k, out.units + row * groups};
}

/// Where number i of a row lies in its plane (Weights): of every eight, those with even index first.
__device__ inline int plane_slot(int i) { return (i & ~7) | (i & 1) << 2 | (i & 7) >> 1; }

struct RoundingScratch {
  int exponents[kMaxGroups];
  int floors[kMaxLeaves];
  int failed;
};

/// ‖x‖ of 64 values by one warp (rules 0 and 5); e: ceil_exponent of the largest. Lane 0 has it.
__device__ inline float warp_norm(const float* x, int e) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float down = power_of_two(-e);
  const float a = x[lane] * down;
  const float b = x[lane + 32] * down;
  // Lanes of 64 and more are empty: the tree's first two steps add +0.
  return power_of_two(e) * sqrt_(warp_tree(fma_(a, a, 0.0F) + fma_(b, b, 0.0F)));
}

/// Rounds x[k]; `rest`, where not null, receives x − x'. False, and zeros, where x is not finite or an
/// exponent is above 63. `floats`: groups count by their norm (rule 2). All threads of the block call this
/// and get the same answer; what they wrote to x before must be visible (__syncthreads).
__device__ inline bool round_row(const float* x, int k, int group, int leaves, bool floats,
                                 const RoundedRow& out, float* rest, RoundingScratch& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = k / group;
  if (threadIdx.x == 0) s.failed = 0;
  __syncthreads();
  for (int g = warp; g < groups; g += kRowThreads / 32) {
    uint32_t largest = 0;
    for (int i = lane; i < group; i += 32) largest = max(largest, magnitude_bits(x[g * group + i]));
    float size = float_from_bits(warp_max(largest));
    bool bad = exponent_fails(ceil_exponent(size));
    if (floats && !bad) size = warp_norm(x + g * group, ceil_exponent(size)) * (1.0F + 0x1p-9F);
    if (lane == 0) {
      const int e = ceil_exponent(size);
      s.exponents[g] = e;
      if (bad || exponent_fails(e)) s.failed = 1;
    }
  }
  __syncthreads();
  const bool finite = s.failed == 0;
  const int per_leaf = groups / leaves;
  if (static_cast<int>(threadIdx.x) < leaves) {
    int largest = kMinExponent;
    for (int g = 0; g < per_leaf; ++g) {
      largest = max(largest, s.exponents[static_cast<int>(threadIdx.x) * per_leaf + g]);
    }
    s.floors[threadIdx.x] = largest - 16;
  }
  __syncthreads();
  for (int g = warp; g < groups; g += kRowThreads / 32) {
    const int e = max(s.exponents[g], s.floors[g / per_leaf]);
    const int step = finite ? e - (floats ? 12 : 13) : 0;
    const float per_unit = power_of_two(-step);
    int32_t sum = 0;
    for (int i = g * group + lane; i < (g + 1) * group; i += 32) {
      const float value = finite ? x[i] : 0.0F;
      const float rounded = round_to_step(value, step);
      const int n = static_cast<int>(rounded * per_unit);
      sum += n;
      if (out.numbers != nullptr) {
        out.numbers[i] = static_cast<int16_t>(floats ? half_bits(static_cast<float>(n)) : n);
      }
      if (out.planes != nullptr) {
        out.planes[plane_slot(i)] = static_cast<int8_t>(n >> 7);
        out.planes[k + plane_slot(i)] = static_cast<int8_t>(n & 127);
      }
      if (rest != nullptr) rest[i] = value - rounded;
    }
    sum = warp_sum(sum);
    if (lane == 0) out.units[g] = {power_of_two(step), static_cast<float>(sum)};
  }
  __syncthreads();
  return finite;
}

}  // namespace tercet::cuda
