// Rule 1 in few instructions, where all powers are normal.
#pragma once

#include <cuda_fp16.h>

#include "ops/exact_math.h"

namespace tercet::cuda {

/// 2^e for −126 ≤ e ≤ 127.
__device__ inline float plain_power(int e) { return __int_as_float((e + 127) << 23); }

/// round_to_step().
__device__ inline float round_plainly(float x, int step) {
  const int own = static_cast<int>((float_bits(x) >> 23) & 255U) - 137;
  const int to = max(own, step);
  constexpr float kWhole = 12582912.0F;
  return ((x * plain_power(-to) + kWhole) - kWhole) * plain_power(to);
}

/// The nearest fp16 number's bits, and what bits stand for.
__device__ inline uint16_t half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ inline float half_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

/// Where number i of a row lies among its halves (Rounded).
__device__ inline int half_slot(int i) {
  return (i & ~63) | (i & 3) << 4 | (i >> 3 & 1) << 3 | (i >> 4 & 3) << 1 | (i >> 2 & 1);
}

}  // namespace tercet::cuda
