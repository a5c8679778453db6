// Elements of checkpoints.
#pragma once

#include <cuda_fp16.h>

#include "ops/exact_math.h"

namespace tercet::cuda {

/// dtype 0: bf16, 1: f16, 2: f32.
__device__ inline float value_at(int64_t dtype, const uint8_t* data, int64_t index) {
  if (dtype == 2) return reinterpret_cast<const float*>(data)[index];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(data)[index];
  return dtype == 0 ? float_from_bits(uint32_t{bits} << 16) : __half2float(__ushort_as_half(bits));
}

/// Number i of a little-endian stream of `bits` each.
__device__ inline uint32_t stream_at(const uint8_t* data, int bits, int64_t i) {
  const int64_t bit = i * bits;
  uint32_t window = data[bit / 8];
  if (bit % 8 + bits > 8) window |= static_cast<uint32_t>(data[bit / 8 + 1]) << 8;
  return (window >> (bit % 8)) & ((1U << bits) - 1U);
}

}  // namespace tercet::cuda
