#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/choose.cuh"

namespace tercet::cuda {
namespace {

template <int kPer>
__global__ void __launch_bounds__(32) choose_kernel(ChooseParams p) {
  after_earlier_kernels();
  __shared__ ChooseScratch scratch;
  const int64_t row = blockIdx.x;
  choose_of_row<kPer, true>(p, row, scratch, [&](int place, int expert, float weight) {
    p.chosen_experts[row * p.chosen + place] = expert;
    p.weights[row * p.chosen + place] = weight;
  });
}

__global__ void combine_kernel(CombineParams p) {
  after_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{p.rows} * p.n) return;
  const int64_t row = i / p.n;
  float z = 0.0F;
  for (int j = 0; j < p.chosen; ++j) {
    const int64_t pair = row * p.chosen + j;
    z = fma_(p.weights[pair], p.y[pair * p.n + i % p.n], z);
  }
  p.z[i] = p.shared == nullptr ? z : z + p.shared[i];
}

}  // namespace

void choose_experts(Launcher& launcher, const ChooseParams& params) {
  launcher.add(params.experts <= 256 ? choose_kernel<8> : choose_kernel<kMaxExperts / 32>,
               dim3(static_cast<unsigned>(params.rows)), dim3(32), params);
}

void combine(Launcher& launcher, const CombineParams& params) {
  const int64_t count = int64_t{params.rows} * params.n;
  launcher.add(combine_kernel, dim3(static_cast<unsigned>((count + 255) / 256)), dim3(256), params);
}

}  // namespace tercet::cuda
