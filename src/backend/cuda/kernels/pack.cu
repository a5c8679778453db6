#include <algorithm>

#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/pack.h"
#include "backend/cuda/kernels/values.cuh"

namespace tercet::cuda {
namespace {

/// A row of blocks for each.
struct ListParams {
  const PackParams* list;
};

/// A thread writes the 8 bytes that one lane holds of one output's block in a plane.
__global__ void pack_values_kernel(ListParams params) {
  after_earlier_kernels();
  const PackParams p = params.list[blockIdx.y];
  const int blocks = p.to.blocks();
  const int64_t per_row = int64_t{blocks} * 4;
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t padded = (p.n + kTile - 1) / kTile * kTile;
  if (index >= padded * per_row) return;
  const int row = static_cast<int>(index / per_row);
  const int block = static_cast<int>(index % per_row / 4);
  const int t = static_cast<int>(index % 4);
  uint64_t low = 0;
  uint64_t high = 0;
  for (int i = 0; i < 16; ++i) {
    const int at = block * kBlock + 16 * t + i;
    if (row >= p.n || at >= p.to.k) break;
    const uint64_t q = stream_at(p.values + row * p.row_bytes, p.bits, at);
    low |= (q & 15U) << (4 * i);
    high |= (q >> 4) << (4 * i);
  }
  const int n = p.first + row;
  const int64_t first = (int64_t{n / kTile} * blocks + block) * p.to.planes;
  const int lane = n % 8 * 4 + t;
  auto* values = const_cast<uint8_t*>(p.to.values) + lane * 16 + n % kTile / 8 * 8;
  *reinterpret_cast<uint64_t*>(values + (first + p.to.planes - 1) * kBlockBytes) = low;
  if (p.to.planes == 2) *reinterpret_cast<uint64_t*>(values + first * kBlockBytes) = high;
}

__device__ inline bool wild(float x) { return x != 0.0F && !(fabsf(x) >= 0x1p-64F && fabsf(x) <= 0x1p32F); }

__global__ void pack_scales_kernel(ListParams params) {
  after_earlier_kernels();
  const PackParams p = params.list[blockIdx.y];
  const int groups = p.to.groups();
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t padded = (p.n + kTile - 1) / kTile * kTile;
  if (index >= padded * groups) return;
  const int64_t row = index / groups;
  const int64_t g = index % groups;
  const float scale = row < p.n ? value_at(p.dtype, p.scales, row * groups + g) : 0.0F;
  const float bias = row < p.n ? value_at(p.dtype, p.biases, row * groups + g) : 0.0F;
  if (wild(scale) || wild(bias)) *p.wild = 1;
  const int64_t n = p.first + row;
  const int64_t at = ((n / kTile * groups + g) * kTile + n % 8 * 2 + n % kTile / 8) * 2;
  auto* scales = const_cast<uint8_t*>(p.to.scales);
  if (p.to.wide != 0) {
    reinterpret_cast<float*>(scales)[at] = scale;
    reinterpret_cast<float*>(scales)[at + 1] = bias;
  } else {  // they came as bf16
    reinterpret_cast<uint16_t*>(scales)[at] = static_cast<uint16_t>(float_bits(scale) >> 16);
    reinterpret_cast<uint16_t*>(scales)[at + 1] = static_cast<uint16_t>(float_bits(bias) >> 16);
  }
}

__global__ void widen_kernel(WidenParams p) {
  after_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < p.count) p.out[i] = value_at(p.dtype, p.values, i);
}

__global__ void exponents_kernel(ExponentParams p) {
  after_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < p.count) p.exponents[i] = static_cast<int8_t>(ceil_exponent(p.units[i].unit * 0x1p12F));
}

dim3 blocks_for(int64_t threads, size_t count = 1) {
  return {static_cast<unsigned>((threads + 255) / 256), static_cast<unsigned>(count)};
}

}  // namespace

void pack_affine(Launcher& launcher, std::span<const PackParams> list, const PackParams* on_device) {
  int64_t values = 0, scales = 0;  // threads of the largest
  for (const PackParams& p : list) {
    const int64_t padded = (p.n + kTile - 1) / kTile * kTile;
    values = std::max(values, padded * p.to.blocks() * 4);
    scales = std::max(scales, padded * p.to.groups());
  }
  launcher.add(pack_values_kernel, blocks_for(values, list.size()), dim3(256), ListParams{on_device});
  launcher.add(pack_scales_kernel, blocks_for(scales, list.size()), dim3(256), ListParams{on_device});
}

void widen(Launcher& launcher, const WidenParams& params) {
  launcher.add(widen_kernel, blocks_for(params.count), dim3(256), params);
}

void exponents(Launcher& launcher, const ExponentParams& params) {
  launcher.add(exponents_kernel, blocks_for(params.count), dim3(256), params);
}

}  // namespace tercet::cuda
