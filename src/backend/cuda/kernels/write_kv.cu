#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/write_head.cuh"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(kWarps * 32) write_kv_kernel(WriteKvOfLeavesParams p) {
  after_earlier_kernels();
  const WriteKvParams& write = p.both.write;
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (head >= write.heads + 2 * write.cache.heads) return;
  const int64_t first = row * write.ld + head * kHead + threadIdx.x % 32;
  const float* from = (p.leaves > 0 ? p.parts : write.qkv) + first;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = from[32 * i];
#pragma unroll 3
  for (int leaf = 1; leaf < p.leaves; ++leaf) {
    from += p.leaf_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = x[i] + from[32 * i];
  }
  write_head(p.both, row, head, x, p.leaves > 0);
}

}  // namespace

void write_kv_and_queries(Launcher& launcher, const WriteKvOfLeavesParams& params) {
  const WriteKvParams& write = params.both.write;
  const int heads = write.heads + 2 * write.cache.heads;
  launcher.add(write_kv_kernel,
               dim3(static_cast<unsigned>(write.rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)),
               dim3(kWarps * 32), params);
}

}  // namespace tercet::cuda
