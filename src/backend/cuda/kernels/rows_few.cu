#include <cuda_fp16.h>

#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/round_source.cuh"
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

__device__ inline float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ inline void store_four(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
__device__ inline float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

/// Numbers i … i + 3 of a row's experts, summed up (rule 11).
__device__ inline float4 combined(const NormParams& p, int64_t row, int i) {
  const float* from = p.experts + row * p.chosen * p.k + i;
  const float* weights = p.route_weights + row * p.chosen;
  float4 z = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 8
  for (int j = 0; j < p.chosen; ++j) {
    const float weight = weights[j];
    const float4 y = load_four(from + int64_t{j} * p.k);
    z = {fma_(weight, y.x, z.x), fma_(weight, y.y, z.y), fma_(weight, y.z, z.z), fma_(weight, y.w, z.w)};
  }
  return p.shared == nullptr ? z : plus(z, load_four(p.shared + row * p.k + i));
}

/// Of a product's leaves.
__device__ inline float4 summed(const NormParams& p, int64_t row, int i) {
  const float* from = p.parts + row * p.k + i;
  float4 z = load_four(from);
#pragma unroll 7
  for (int leaf = 1; leaf < p.leaves_of_z; ++leaf) z = plus(z, load_four(from + leaf * p.leaf_stride));
  return z;
}

/// What is normed of a row, to shared memory; sums on the way go where they belong.
__device__ inline void hold_sums(const NormParams& p, int64_t row, float* x) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 4; i < p.k; i += kThreads * 4) {
    float4 value = load_four(p.x + row * p.ldx + i);
    if (p.z != nullptr) {
      float* const at = p.z + row * p.ldz + i;
      float4 z;
      if (p.experts != nullptr) {
        z = combined(p, row, i);
      } else {
        z = p.leaves_of_z > 0 ? summed(p, row, i) : load_four(at);
      }
      value = plus(value, z);
      if (p.experts != nullptr || p.leaves_of_z > 0) store_four(at, z);
      store_four(p.x + row * p.ldx + i, value);
    }
    store_four(x + i, value);
  }
}

__global__ void __launch_bounds__(kThreads) norm_kernel(NormParams p) {
  let_later_kernels_begin();
  extern __shared__ __align__(16) float x[];
  __shared__ Scratch s;
  const int64_t row = blockIdx.x;
  float* const weight = x + p.k;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < p.k; i += kThreads) weight[i] = p.weight[i];
  wait_for_earlier_kernels();
  hold_sums(p, row, x);
  __syncthreads();
  float lane_sum = 0.0F;
  if (threadIdx.x < kRowThreads) {
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x); i < p.k; i += kRowThreads)
      lane_sum = fma_(x[i], x[i], lane_sum);
  }
  const float mean = lane_tree_once(lane_sum, s) / static_cast<float>(p.k);
  const float r = 1.0F / sqrt_(mean + p.eps);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool fit = true;
#pragma unroll 1
  for (int part = 0; part <= p.rest; ++part) {
    Rounded out = p.rounded;
#pragma unroll 2
    for (int g = static_cast<int>(threadIdx.x) / 32; g < p.k / kBlock; g += kWarps) {
      const int at = g * kBlock + lane;
      float a = x[at];
      float b = x[at + 32];
      if (part == 0) {
        p.h[row * p.ldh + at] = x[at] = a = (a * r) * weight[at];
        p.h[row * p.ldh + at + 32] = x[at + 32] = b = (b * r) * weight[at + 32];
      }
      keep_exponent(s, g, a, b);
    }
    if (part > 0) out.planes = nullptr;  // x is now what the rounding left, which goes to halves alone
    const bool good = round_held(x, p.k, p.leaves, out, row + int64_t{part} * p.rows, s);
    if (part == 0) fit = good;
  }
  if (threadIdx.x == 0) p.unfit[row] = fit ? 0 : 1;
}

__global__ void __launch_bounds__(kThreads) round_kernel(RoundParams p) {
  after_earlier_kernels();
  extern __shared__ float x[];
  __shared__ Scratch s;
  const int64_t row = blockIdx.x;
  const RoundSource source = source_of(p, row);
  const int parts = p.rest == nullptr ? 1 : 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool finite = true;
#pragma unroll 1
  for (int part = 0; part < parts; ++part) {
    if (part == 0) {
#pragma unroll 4
      for (int g = static_cast<int>(threadIdx.x) / 32; g < p.k / kBlock; g += kWarps) {
        x[g * kBlock + lane] = source.x[g * kBlock + lane];
        x[g * kBlock + lane + 32] = source.x[g * kBlock + lane + 32];
      }
    }
#pragma unroll 2
    for (int g = static_cast<int>(threadIdx.x) / 32; g < p.k / kBlock; g += kWarps) {
      const int at = g * kBlock + lane;
      keep_exponent(s, g, x[at], x[at + 32]);  // by the warp that wrote them
    }
    finite = round_held(x, p.k, p.weights.leaves, p.rounded, row * parts + part, s) && finite;
  }
  if (!finite && threadIdx.x == 0) p.failed[source.flag] = 1;
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
