#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/router.h"

namespace tercet::cuda {
namespace {

/// Floats in the order of their bits; −0 does not occur.
__device__ inline uint32_t ordered_bits(float x) {
  const uint32_t bits = float_bits(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// One warp a row: k times the largest that is left, ties to the lower index. A lane has experts lane, lane +
/// 32, ….
template <int kPer>
__global__ void __launch_bounds__(32) choose_kernel(ChooseParams p) {
  after_earlier_kernels();
  __shared__ float chosen_score[kMaxChosen];
  __shared__ int order[kMaxChosen];
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const float* first = p.logits + row * p.step * p.experts;
  const float* rest = first + int64_t{p.rest} * p.experts;
  float score[kPer];
  uint32_t key[kPer];  // 0: taken, or none
  bool bad = false;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = lane + 32 * i;
    score[i] = e < p.experts ? first[e] + rest[e] : 0.0F;
    key[i] = 0;
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = lane + 32 * i;
    if (e >= p.experts) break;
    if (not_finite(score[i])) {
      bad = true;
      score[i] = 0.0F;
    }
    score[i] = sigmoid(score[i]);
    key[i] = ordered_bits(score[i] + p.bias[e]);
  }
  bad = bad || (p.unfit != nullptr && p.unfit[row] != 0);
  if (__any_sync(kAll, bad) && lane == 0) p.failed[row] = 1;
  float sum = 0.0F;
#pragma unroll 1
  for (int j = 0; j < p.chosen; ++j) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) best = max(best, key[i]);
    best = warp_max(best);
    int mine = kMaxExperts;
    float value = 0.0F;
#pragma unroll
    for (int i = kPer - 1; i >= 0; --i) {
      if (key[i] != best) continue;
      mine = lane + 32 * i;
      value = score[i];
    }
    const int index = __reduce_min_sync(kAll, mine);
    sum = sum + __shfl_sync(kAll, value, index % 32);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (lane + 32 * i == index) key[i] = 0;
    }
    if (lane == index % 32) {
      order[j] = index;
      chosen_score[j] = value;
    }
  }
  __syncwarp();
  sum = sum + 1e-20F;
#pragma unroll 1
  for (int j = lane; j < p.chosen; j += 32) {
    int place = 0;  // in ascending index
#pragma unroll 1
    for (int i = 0; i < p.chosen; ++i) place += order[i] < order[j] ? 1 : 0;
    const float own = chosen_score[j];
    p.chosen_experts[row * p.chosen + place] = order[j];
    p.weights[row * p.chosen + place] = (p.normalise != 0 ? own / sum : own) * p.scaling;
  }
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
