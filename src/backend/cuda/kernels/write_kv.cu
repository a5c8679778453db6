#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/write_head.cuh"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(kWarps * 32) write_kv_kernel(WriteKvAndQueriesParams p) {
  after_earlier_kernels();
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (head < p.write.heads + 2 * p.write.cache.heads) write_head(p, blockIdx.x, head);
}

}  // namespace

void write_kv_and_queries(Launcher& launcher, const WriteKvAndQueriesParams& params) {
  const int heads = params.write.heads + 2 * params.write.cache.heads;
  launcher.add(
      write_kv_kernel,
      dim3(static_cast<unsigned>(params.write.rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)),
      dim3(kWarps * 32), params);
}

}  // namespace tercet::cuda
