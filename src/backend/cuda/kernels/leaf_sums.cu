#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/leaf_sums.h"
#include "ops/exact_math.h"

namespace tercet::cuda {
namespace {

/// y = the leaves' sums one after another, then SwiGLU where asked for.
__global__ void add_leaves_kernel(LeafSumParams p) {
  after_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int columns = p.swiglu != 0 ? p.n / 2 : p.n;
  if (i >= int64_t{p.rows} * columns) return;
  const int64_t row = i / columns;
  const auto total = [&](int64_t column) {
    const float* from = p.parts + row * p.n + column;
    float sum = from[0];
#pragma unroll 4
    for (int leaf = 1; leaf < p.leaves; ++leaf) sum = sum + from[leaf * p.leaf_stride];
    return sum;
  };
  const float value = total(i % columns);
  p.y[row * p.ldy + i % columns] = p.swiglu != 0 ? swiglu(value, total(i % columns + columns)) : value;
}

}  // namespace

void add_leaves(Launcher& launcher, const LeafSumParams& params) {
  const int64_t count = int64_t{params.rows} * (params.swiglu != 0 ? params.n / 2 : params.n);
  launcher.add(add_leaves_kernel, dim3(static_cast<unsigned>((count + 127) / 128)), dim3(128), params);
}

}  // namespace tercet::cuda
