#include <cuda_fp16.h>

#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/rounding.cuh"
#include "backend/cuda/kernels/rows_few.h"

namespace tercet::cuda {
namespace {

// These kernels run once between two products, by a block or a few: what counts is their latency, and of that
// the way of their instructions into the caches. Loops are short and stay loops.
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

struct Scratch {
  float lanes[kRowThreads];
  int exponents[kMaxGroups];
  int floors[kMaxLeaves];  // of a leaf: its largest exponent − 16
};

/// The tree of rule 5; every warp computes it for itself.
__device__ inline float lane_tree_once(float lane, Scratch& s) {
  if (threadIdx.x < kRowThreads) s.lanes[threadIdx.x] = lane;
  __syncthreads();
  const float* x = s.lanes + threadIdx.x % 32;
  const float a = (x[0] + x[128]) + (x[64] + x[192]);
  const float b = (x[32] + x[160]) + (x[96] + x[224]);
  return __shfl_sync(kAll, warp_tree(a + b), 0);
}

/// E of group g, which the calling warp holds: numbers lane and lane + 32.
__device__ inline void keep_exponent(Scratch& s, int g, float a, float b) {
  const uint32_t largest = warp_max(max(magnitude_bits(a), magnitude_bits(b)));
  if (threadIdx.x % 32 == 0) s.exponents[g] = ceil_exponent(float_from_bits(largest));
}

/// Rounds x[k], in shared memory, whose groups' exponents are in `s`, to row `row` of `out`; x becomes what
/// the rounding left. As round_row() of rounding.cuh.
__device__ bool round_held(float* x, int k, int leaves, const Rounded& out, int64_t row, Scratch& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = k / kBlock;
  const int per_leaf = groups / leaves;
  __syncthreads();
  if (warp < leaves) {
    int largest = kMinExponent;
    for (int g = lane; g < per_leaf; g += 32) largest = max(largest, s.exponents[warp * per_leaf + g]);
    largest = __reduce_max_sync(kAll, largest);
    if (lane == 0) s.floors[warp] = largest - 16;
  }
  __syncthreads();
  const bool finite = !exponent_fails(__reduce_max_sync(kAll, lane < leaves ? s.floors[lane] + 16 : 0));
  int8_t* const planes = out.planes + row * 2 * k;
  uint16_t* const halves = out.halves + row * k;
#pragma unroll 1
  for (int g = warp; g < groups; g += kWarps) {
    const int step = finite ? max(s.exponents[g], s.floors[g / per_leaf]) - 13 : 0;
    const int of_leaf = finite ? s.floors[g / per_leaf] + 16 : 0;  // its E
    int32_t sum = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = g * kBlock + 32 * half + lane;
      const float value = finite ? x[i] : 0.0F;
      const float rounded = round_plainly(value, step);
      const int n = static_cast<int>(rounded * plain_power(-step));
      x[i] = value - rounded;
      if (out.planes != nullptr) {
        planes[plane_slot(i)] = static_cast<int8_t>(n >> 7);
        planes[k + plane_slot(i)] = static_cast<int8_t>(n & 127);
      }
      if (out.halves != nullptr) {
        halves[half_slot(i)] = __half_as_ushort(
            __float2half_rn(static_cast<float>(n) * plain_power(step - of_leaf + 15 - i % 2 * 4)));
      }
      sum += n;
    }
    sum = warp_sum(sum);
    if (lane > 0) continue;
    if (out.planes != nullptr) out.units[row * groups + g] = {plain_power(step), static_cast<float>(sum)};
    if (out.halves == nullptr) continue;
    out.sums[row * groups + g] = static_cast<float>(sum) * plain_power(step - of_leaf - 9);
    if (g % per_leaf == 0) out.leaf_units[row * leaves + g / per_leaf] = plain_power(of_leaf + 9);
  }
  return finite;
}

/// Number i of a row's experts, summed up (rule 11).
__device__ inline float combined(const NormParams& p, int64_t row, int i) {
  float z = 0.0F;
#pragma unroll 8
  for (int j = 0; j < p.chosen; ++j) {
    const int64_t pair = row * p.chosen + j;
    z = fma_(p.route_weights[pair], p.experts[pair * p.k + i], z);
  }
  return p.shared == nullptr ? z : z + p.shared[row * p.k + i];
}

__global__ void __launch_bounds__(kThreads) norm_kernel(NormParams p) {
  extern __shared__ float x[];
  __shared__ Scratch s;
  const int64_t row = blockIdx.x;
  float* const weight = x + p.k;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < p.k; i += kThreads) weight[i] = p.weight[i];
  after_earlier_kernels();  // none of which writes weights
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < p.k; i += kThreads) {
    float value = p.x[row * p.ldx + i];
    if (p.z != nullptr) {
      if (p.experts != nullptr) p.z[row * p.ldz + i] = combined(p, row, i);
      value = value + p.z[row * p.ldz + i];
      p.x[row * p.ldx + i] = value;
    }
    x[i] = value;
  }
  __syncthreads();
  float lane_sum = 0.0F;
  if (threadIdx.x < kRowThreads) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < p.k; i += kRowThreads)
      lane_sum = fma_(x[i], x[i], lane_sum);
  }
  const float mean = lane_tree_once(lane_sum, s) / static_cast<float>(p.k);
  const float r = 1.0F / sqrt_(mean + p.eps);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 2
  for (int g = static_cast<int>(threadIdx.x) / 32; g < p.k / kBlock; g += kWarps) {
    const int at = g * kBlock + lane;
    const float a = (x[at] * r) * weight[at];
    const float b = (x[at + 32] * r) * weight[at + 32];
    p.h[row * p.ldh + at] = x[at] = a;
    p.h[row * p.ldh + at + 32] = x[at + 32] = b;
    keep_exponent(s, g, a, b);
  }
  const bool fit = round_held(x, p.k, p.leaves, p.rounded, row, s);
  if (p.rest != 0) {  // which x is now
    Rounded rest = p.rounded;
    rest.planes = nullptr;
#pragma unroll 2
    for (int g = static_cast<int>(threadIdx.x) / 32; g < p.k / kBlock; g += kWarps) {
      keep_exponent(s, g, x[g * kBlock + lane], x[g * kBlock + lane + 32]);
    }
    round_held(x, p.k, p.leaves, rest, p.rows + row, s);
  }
  if (threadIdx.x == 0) p.unfit[row] = fit ? 0 : 1;
}

__global__ void __launch_bounds__(kThreads) round_kernel(RoundParams p) {
  after_earlier_kernels();
  extern __shared__ float x[];
  __shared__ Scratch s;
  const int64_t row = blockIdx.x;
  const float* from = p.x + (p.ids == nullptr ? row / p.x_div : p.ids[row]) * p.ldx;
  const int parts = p.rest == nullptr ? 1 : 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool finite = true;
#pragma unroll 1
  for (int part = 0; part < parts; ++part) {
    if (part == 0) {
#pragma unroll 4
      for (int g = static_cast<int>(threadIdx.x) / 32; g < p.k / kBlock; g += kWarps) {
        x[g * kBlock + lane] = from[g * kBlock + lane];
        x[g * kBlock + lane + 32] = from[g * kBlock + lane + 32];
      }
    }
#pragma unroll 2
    for (int g = static_cast<int>(threadIdx.x) / 32; g < p.k / kBlock; g += kWarps) {
      const int at = g * kBlock + lane;
      keep_exponent(s, g, x[at], x[at + 32]);  // by the warp that wrote them
    }
    finite = round_held(x, p.k, p.weights.leaves, p.rounded, row * parts + part, s) && finite;
  }
  if (!finite && threadIdx.x == 0) p.failed[p.ids == nullptr ? row / p.flag_div : p.ids[row]] = 1;
}

}  // namespace

void norm_and_round(Launcher& launcher, const NormParams& params) {
  launcher.add(norm_kernel, dim3(static_cast<unsigned>(params.rows)), dim3(kThreads), params,
               2 * static_cast<size_t>(params.k) * sizeof(float));
}

void round_held_rows(Launcher& launcher, const RoundParams& params) {
  launcher.add(round_kernel, dim3(static_cast<unsigned>(params.rows)), dim3(kThreads), params,
               static_cast<size_t>(params.k) * sizeof(float));
}

}  // namespace tercet::cuda
