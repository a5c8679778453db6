// Sums of whole numbers on int8 tensor cores, for weights and rows as Weights and Rounded hold them.
#pragma once

#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/views.h"
#include "ops/exact_math.h"

namespace tercet::cuda {

constexpr int kTokens = 4;  // that one mma serves: two planes each are its 8 columns

__device__ inline float low_half(uint32_t pair) { return float_from_bits(pair << 16); }
__device__ inline float high_half(uint32_t pair) { return float_from_bits(pair & 0xffff0000U); }

/// D of an output and a token: 128·(sum with the high plane) + (sum with the low plane), exact.
__device__ inline float exact_sum(int high, int low) { return static_cast<float>(high * 128 + low); }

/// The sums of one plane of q, 16 outputs by 64 numbers, with four tokens.
__device__ inline void multiply(int (&c)[4], uint4 w, uint4 x) {
  constexpr uint32_t kLow = 0x0f0f0f0fU;
  mma_int8(c, w.x & kLow, w.z & kLow, w.x >> 4 & kLow, w.z >> 4 & kLow, x.x, x.y);
  mma_int8(c, w.y & kLow, w.w & kLow, w.y >> 4 & kLow, w.w >> 4 & kLow, x.z, x.w);
}

/// One link of rule 2's chain: a group of a tile's outputs g and g + 8 with one token. `scales`: their scale
/// and bias as bf16 pairs.
template <int kPlanes>
__device__ inline void extend(float (&acc)[2], const uint4 (&w)[kPlanes], uint2 scales, uint4 x, UnitSum u) {
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    int c[4] = {0, 0, 0, 0};
    multiply(c, w[plane], x);
    const float unit = kPlanes == 2 && plane == 0 ? 16.0F * u.unit : u.unit;
    acc[0] = fma_(low_half(scales.x) * unit, exact_sum(c[0], c[1]), acc[0]);
    acc[1] = fma_(low_half(scales.y) * unit, exact_sum(c[2], c[3]), acc[1]);
  }
  acc[0] = fma_(high_half(scales.x) * u.unit, u.sum, acc[0]);
  acc[1] = fma_(high_half(scales.y) * u.unit, u.sum, acc[1]);
}

/// One plane of q of a warp's tile as the a of four fp16 products of 16 numbers each: q masked in place is
/// q·2^-24 or q·2^-20, a subnormal; rows are scaled to match (Rounded).
__device__ inline void unpack(uint32_t (&a)[16], uint4 w) {
  constexpr uint32_t kFirst = 0x000f000fU, kSecond = 0x00f000f0U;
  const uint32_t words[4] = {w.x, w.z, w.y, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i] = words[i] & kFirst;
    a[4 + i] = words[i] & kSecond;
    a[8 + i] = words[i] >> 8 & kFirst;
    a[12 + i] = words[i] >> 8 & kSecond;
  }
}

__device__ inline const uint8_t* tile_values(const Weights& w, int tile) {
  return w.values + int64_t{tile} * w.blocks() * w.planes * kBlockBytes;
}
__device__ inline const uint8_t* tile_scales(const Weights& w, int tile) {
  return w.scales + int64_t{tile} * w.groups() * (kTile * 4);
}

}  // namespace tercet::cuda
