#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/logits.h"
#include "base/philox.h"

namespace tercet::cuda {
namespace {

constexpr int kThreads = 1024;  // so that a thread has few tokens, one after another
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == 32);  // a lane each in the last step

struct Best {
  float value;
  int token;
};

__device__ inline Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}

__device__ inline Best warp_best(Best best) {
  for (int step = 16; step >= 1; step /= 2) {
    best = better(best, {__shfl_xor_sync(kAll, best.value, step), __shfl_xor_sync(kAll, best.token, step)});
  }
  return best;
}

__device__ inline float gumbel_noise(const LogitRow& row, int token) {
  const uint32_t word = philox4x32(row.seed, {row.position, static_cast<uint32_t>(token), 0, 0})[0];
  const float u = static_cast<float>(2 * (word >> 9) + 1) * 0x1p-24F;
  const float e = -(kLn2 * log2_(u));
  return -(kLn2 * log2_(e));
}

/// Largest logit and the draw's best of a part of a row.
__global__ void __launch_bounds__(kThreads) part_kernel(LogitParams p) {
  after_earlier_kernels();
  __shared__ Best best_of[kWarps];
  __shared__ float max_of[kWarps];
  const int64_t row = blockIdx.y;
  const LogitRow wanted = p.wanted[row];
  const float* x = p.logits + row * p.vocabulary;
  float max = -INFINITY;
  Best best{-INFINITY, INT32_MAX};
  bool bad = false;
  const int stride = kLogitParts * kThreads;
  for (int t = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); t < p.vocabulary; t += stride) {
    const float l = x[t];
    bad = bad || not_finite(l);
    max = fmaxf(max, l);
    if (wanted.draw == 0) continue;
    float value = l;
    if (wanted.temperature > 0.0F) {
      value = l / wanted.temperature;
      bad = bad || not_finite(value);
      value = value + gumbel_noise(wanted, t);
    }
    best = better(best, {value, t});
  }
  best = warp_best(best);
  for (int step = 16; step >= 1; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
  if (threadIdx.x % 32 == 0) {
    best_of[threadIdx.x / 32] = best;
    max_of[threadIdx.x / 32] = max;
  }
  const bool any_bad = __syncthreads_or(bad ? 1 : 0) != 0;
  if (threadIdx.x >= 32) return;
  best = warp_best(best_of[threadIdx.x]);
  max = max_of[threadIdx.x];
  for (int step = 16; step >= 1; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
  if (threadIdx.x != 0) return;
  p.parts[row * kLogitParts + blockIdx.x] = {0, max, best.value, best.token, any_bad ? 1 : 0};
}

__device__ inline float row_max(const LogitParams& p, int64_t row) {
  float max = p.parts[row * kLogitParts + threadIdx.x % 32].max;
  for (int step = 16; step >= 1; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
  return max;
}

/// Sums are whole numbers, so their order is free.
__global__ void __launch_bounds__(kThreads) mass_kernel(LogitParams p) {
  after_earlier_kernels();
  __shared__ uint64_t sums[kWarps];
  const int64_t row = blockIdx.y;
  const float* x = p.logits + row * p.vocabulary;
  const float max = row_max(p, row);
  uint64_t sum = 0;
  const int stride = kLogitParts * kThreads;
  for (int t = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); t < p.vocabulary; t += stride) {
    const float mass = nearest(exp2_((x[t] - max) * kLog2E) * 0x1p40F);
    if (mass > 0.0F) sum += static_cast<uint64_t>(mass);  // NaN: the row has failed
  }
  for (int step = 16; step >= 1; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = sums[threadIdx.x];
  for (int step = 16; step >= 1; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  if (threadIdx.x != 0) return;
  p.parts[row * kLogitParts + blockIdx.x].mass = sum;
}

/// One warp a row: a lane a part.
__global__ void __launch_bounds__(32) result_kernel(LogitParams p) {
  after_earlier_kernels();
  const int64_t row = blockIdx.x;
  const LogitPart part = p.parts[row * kLogitParts + threadIdx.x];
  const float max = row_max(p, row);
  const Best best = warp_best({part.best, part.token});
  uint64_t sum = part.mass;
  for (int step = 16; step >= 1; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  const LogitRow wanted = p.wanted[row];
  const bool bad = __any_sync(kAll, part.bad != 0) || p.failed[wanted.row] != 0;
  if (threadIdx.x != 0) return;
  LogitResult out{bad ? 1 : 0, wanted.target, 0.0F, max, kLn2 * log2_(static_cast<float>(sum) * 0x1p-40F)};
  if (wanted.draw != 0) out.token = best.token;
  if (!bad && out.token >= 0) {
    out.logprob = (p.logits[row * p.vocabulary + out.token] - max) - out.log_mass;
  }
  p.results[row] = out;
}

__global__ void __launch_bounds__(kThreads) all_kernel(LogitParams p) {
  after_earlier_kernels();
  const int64_t row = blockIdx.y;
  const LogitResult result = p.results[row];
  for (int t = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); t < p.vocabulary;
       t += static_cast<int>(gridDim.x) * kThreads) {
    const int64_t at = row * p.vocabulary + t;
    p.all[at] = (p.logits[at] - result.max) - result.log_mass;
  }
}

}  // namespace

void evaluate_logits(Launcher& launcher, const LogitParams& p) {
  const auto rows = static_cast<unsigned>(p.rows);
  launcher.add(part_kernel, dim3(kLogitParts, rows), dim3(kThreads), p);
  launcher.add(mass_kernel, dim3(kLogitParts, rows), dim3(kThreads), p);
  launcher.add(result_kernel, dim3(rows), dim3(32), p);
  if (p.all != nullptr) launcher.add(all_kernel, dim3(kLogitParts, rows), dim3(kThreads), p);
}

}  // namespace tercet::cuda
