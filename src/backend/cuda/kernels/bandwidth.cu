#include "backend/cuda/kernels/bandwidth.h"
#include "backend/cuda/kernels/block.cuh"

namespace tercet::cuda {
namespace {

/// A block 4 KB at a time, four loads on their way in each thread.
__global__ void __launch_bounds__(256) read_kernel(ReadParams p) {
  after_earlier_kernels();
  const auto* data = reinterpret_cast<const uint4*>(p.data);
  const int64_t pieces = p.bytes / 4096;
  const int64_t stride = gridDim.x;
  uint32_t sum = 0;
  int64_t piece = blockIdx.x;
  for (; piece + 3 * stride < pieces; piece += 4 * stride) {
    uint4 part[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) part[i] = __ldcs(data + (piece + i * stride) * 256 + threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum ^= part[i].x ^ part[i].y ^ part[i].z ^ part[i].w;
  }
  for (; piece < pieces; piece += stride) {
    const uint4 part = __ldcs(data + piece * 256 + threadIdx.x);
    sum ^= part.x ^ part.y ^ part.z ^ part.w;
  }
  if (sum == 0xdeadbeefU) *p.sink = sum;
}

}  // namespace

void read_all(Launcher& launcher, const ReadParams& params) {
  launcher.add(read_kernel, dim3(132 * 16), dim3(256), params);
}

bool has_code_here() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, read_kernel) == cudaSuccess;
  if (!found) cudaGetLastError();
  return found;
}

}  // namespace tercet::cuda
