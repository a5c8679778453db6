#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/product.h"
#include "ops/exact_math.h"

namespace tercet::cuda {
namespace {

struct ScaleBias {
  float scale, bias;
};

__device__ ScaleBias scale_bias(const Weights& w, int n, int g) {
  const int64_t at = (int64_t{n / kTile} * w.groups() + g) * kTile + n % 8 * 2 + n % kTile / 8;
  if (w.wide != 0) {
    const float* pair = reinterpret_cast<const float*>(w.scales) + 2 * at;
    return {pair[0], pair[1]};
  }
  const uint16_t* pair = reinterpret_cast<const uint16_t*>(w.scales) + 2 * at;
  return {float_from_bits(uint32_t{pair[0]} << 16), float_from_bits(uint32_t{pair[1]} << 16)};
}

/// Σ q·n over numbers [begin, end) of a row, in multiples of 16.
__device__ int32_t plane_sum(const Weights& w, int n, int plane, const int16_t* x, int begin, int end) {
  int32_t sum = 0;
  for (int i = begin; i < end; i += 16) {
    const int64_t first = (int64_t{n / kTile} * w.blocks() + i / kBlock) * w.planes + plane;
    const int lane = n % 8 * 4 + i % kBlock / 16;
    uint64_t q =
        *reinterpret_cast<const uint64_t*>(w.values + first * kBlockBytes + lane * 16 + n % kTile / 8 * 8);
    for (int j = 0; j < 16; ++j, q >>= 4) sum += static_cast<int32_t>(q & 15U) * x[i + j];
  }
  return sum;
}

__device__ int32_t whole_number(uint16_t half) { return static_cast<int32_t>(half_value(half)); }

/// One link of a leaf's chain (rule 2).
__device__ float extend(float acc, const Weights& w, int n, int g, const int16_t* x, UnitSum u) {
  const int begin = g * w.group;
  const int end = begin + w.group;
  if (w.planes == 0) {
    const uint16_t* m = reinterpret_cast<const uint16_t*>(w.values) + int64_t{n} * w.k;
    int32_t sum = 0;
    for (int i = begin; i < end; ++i) sum += whole_number(m[i]) * whole_number(static_cast<uint16_t>(x[i]));
    const int f = reinterpret_cast<const int8_t*>(w.scales)[int64_t{n} * w.groups() + g];
    return fma_(power_of_two(f - 12) * u.unit, static_cast<float>(sum), acc);
  }
  const ScaleBias sb = scale_bias(w, n, g);
  if (w.planes == 2) {
    const auto sum = static_cast<float>(plane_sum(w, n, 0, x, begin, end));
    acc = fma_(sb.scale * (16.0F * u.unit), sum, acc);
  }
  const auto sum = static_cast<float>(plane_sum(w, n, w.planes - 1, x, begin, end));
  acc = fma_(sb.scale * u.unit, sum, acc);
  return fma_(sb.bias * u.unit, u.sum, acc);
}

__global__ void product_kernel(ProductParams p) {
  after_earlier_kernels();
  const int n = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int64_t row = blockIdx.x;
  if (n >= p.n) return;
  const Weights w = p.which == nullptr ? p.weights : p.list[p.which[row]];
  const int16_t* x = p.x.numbers + row * w.k;
  const UnitSum* units = p.x.units + row * p.units_per_row;
  const int per_leaf = w.groups() / w.leaves;
  float sum = 0.0F;
  for (int leaf = 0; leaf < w.leaves; ++leaf) {
    float acc = 0.0F;
    for (int g = leaf * per_leaf; g < (leaf + 1) * per_leaf; ++g) acc = extend(acc, w, n, g, x, units[g]);
    sum = leaf == 0 ? acc : sum + acc;
  }
  p.y[row * p.ldy + n] = sum;
}

}  // namespace

void product(Launcher& launcher, const ProductParams& params) {
  constexpr int kThreads = 64;
  launcher.add(product_kernel, dim3(params.rows, (params.n + kThreads - 1) / kThreads), dim3(kThreads),
               params);
}

}  // namespace tercet::cuda
