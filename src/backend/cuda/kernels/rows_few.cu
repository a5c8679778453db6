#include <type_traits>

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/kernels/octet.cuh"
#include "backend/cuda/kernels/round_source.cuh"
#include "backend/cuda/kernels/rows_few.h"

namespace tercet::cuda {
namespace {

// These kernels run once between two products, by a block or a few: what counts is their latency, and of that
// the way of their instructions into the caches. A thread holds octets of the row.
constexpr int kThreads = 512;  // at most; at least kRowThreads

struct Scratch {
  float lanes[kRowThreads];
  int exponents[2][kHeldRow / kBlock];  // of the row, of what its rounding left
};

/// The tree of rule 5; every warp computes it for itself.
__device__ inline float lane_tree_once(float lane, Scratch& s) {
  if (threadIdx.x < kRowThreads) s.lanes[threadIdx.x] = lane;
  __syncthreads();
  float own[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) own[i] = s.lanes[threadIdx.x % 32 + 32 * i];
  return row_tree(own);
}

/// Rounds a row, of whose octets a thread holds every blockDim.x-th, to row `row` of `out`. A row that fails
/// becomes zeros; false then. Where `keeps_rest`, octets become what the rounding left. As round_row() of
/// rounding.cuh.
template <int kOwn>
__device__ inline bool round_own(Octet (&own)[kOwn], int k, int leaves, const Rounded& out, int64_t row,
                                 bool keeps_rest, int (&exponents)[kHeldRow / kBlock]) {
  const int groups = k / kBlock;
  const int per_leaf = groups / leaves;
  const auto me = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  int exponent[kOwn];
  bool bad = false;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    exponent[i] = own[i].group_exponent();
    const int g = (me + i * threads) / 8;
    if (g < groups && me % 8 == 0) exponents[g] = exponent[i];
    bad = bad || (g < groups && exponent_fails(exponent[i]));
  }
  const bool finite = __syncthreads_or(bad ? 1 : 0) == 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int g = (me + i * threads) / 8;
    if (g / 4 * 4 >= groups) break;  // a whole warp has nothing
    const int leaf = min(g, groups - 1) / per_leaf;
    int largest = kMinExponent;
#pragma unroll 4
    for (int j = 0; j < per_leaf; ++j) largest = max(largest, exponents[leaf * per_leaf + j]);
    const int step = finite ? max(exponent[i], largest - 16) - 13 : 0;
    const int of_leaf = finite ? largest : 0;
    if (!finite) own[i].clear();
    float sum = 0.0F;
    const WholeOctet whole = round_octet(own[i], step, keeps_rest, sum);
    if (g >= groups) continue;
    if (out.planes != nullptr) {
      const OctetPlanes planes = whole.planes();
      auto* const to = reinterpret_cast<uint2*>(out.planes + row * 2 * k) + me + i * threads;
      to[0] = planes.high;
      to[k / 8] = planes.low;
      if (me % 8 == 0) out.units[row * groups + g] = {plain_power(step), sum};
    }
    if (out.halves == nullptr) continue;
    whole.put_halves(out.halves + row * k + g * kBlock, me % 8, step, of_leaf);
    if (me % 8 > 0) continue;
    out.sums[row * groups + g] = sum * plain_power(step - of_leaf - 9);
    if (g % per_leaf == 0) out.leaf_units[row * leaves + g / per_leaf] = plain_power(of_leaf + 9);
  }
  return finite;
}

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

/// Numbers i … i + 3 of what is normed; sums on the way go where they belong.
__device__ inline float4 normed(const NormParams& p, int64_t row, int i) {
  float4 value = load_four(p.x + row * p.ldx + i);
  if (p.z == nullptr) return value;
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
  return value;
}

template <int kOwn>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormParams p) {
  let_later_kernels_begin();
  extern __shared__ __align__(16) float x[];
  __shared__ Scratch s;
  const int64_t row = blockIdx.x;
  const auto me = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  Octet weight[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = (me + i * threads) * 8;
    if (at < p.k) weight[i].load(p.weight + at);
  }
  wait_for_earlier_kernels();
#pragma unroll 1
  for (int i = me * 4; i < p.k; i += threads * 4) store_four(x + i, normed(p, row, i));
  __syncthreads();
  float lane_sum = 0.0F;
  if (me < kRowThreads) {
#pragma unroll 8
    for (int i = me; i < p.k; i += kRowThreads) lane_sum = fma_(x[i], x[i], lane_sum);
  }
  const float mean = lane_tree_once(lane_sum, s) / static_cast<float>(p.k);
  const float r = 1.0F / sqrt_(mean + p.eps);
  Octet own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = (me + i * threads) * 8;
    own[i].clear();
    if (at >= p.k) continue;
    own[i].load(x + at);
#pragma unroll
    for (int j = 0; j < 8; ++j) own[i].v[j] = (own[i].v[j] * r) * weight[i].v[j];
    own[i].put(p.h + row * p.ldh + at);
  }
  const bool fit = round_own(own, p.k, p.leaves, p.rounded, row, p.rest != 0, s.exponents[0]);
  if (me == 0) p.unfit[row] = fit ? 0 : 1;
  if (p.rest == 0) return;
  Rounded out = p.rounded;
  out.planes = nullptr;  // what the rounding left goes to halves alone
  round_own(own, p.k, p.leaves, out, row + p.rows, false, s.exponents[1]);
}

template <int kOwn>
__global__ void __launch_bounds__(kThreads) round_kernel(RoundParams p) {
  after_earlier_kernels();
  __shared__ Scratch s;
  const int64_t row = blockIdx.x;
  const RoundSource source = source_of(p, row);
  const int parts = p.rest == nullptr ? 1 : 2;
  Octet own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = static_cast<int>(threadIdx.x + i * blockDim.x) * 8;
    own[i].clear();
    if (at < p.k) own[i].load(source.x + at);
  }
  bool finite = true;
#pragma unroll 1
  for (int part = 0; part < parts; ++part) {
    finite = round_own(own, p.k, p.weights.leaves, p.rounded, row * parts + part, part + 1 < parts,
                       s.exponents[part]) &&
             finite;
  }
  if (!finite && threadIdx.x == 0) p.failed[source.flag] = 1;
}

/// As many as there are octets, as far as that is possible.
unsigned threads_for(int k) {
  const int threads = (k / 8 + 31) / 32 * 32;
  return static_cast<unsigned>(threads < kRowThreads ? kRowThreads : threads > kThreads ? kThreads : threads);
}

/// `launch` with the octets that a thread holds.
template <class Launch>
void with_octets(int k, const Launch& launch) {
  const int own = (k / 8 + kThreads - 1) / kThreads;
  if (own <= 1) return launch(std::integral_constant<int, 1>());
  if (own <= 2) return launch(std::integral_constant<int, 2>());
  launch(std::integral_constant<int, kHeldRow / 8 / kThreads>());
}

}  // namespace

void norm_and_round(Launcher& launcher, const NormParams& params) {
  with_octets(params.k, [&](auto own) {
    launcher.add(norm_kernel<own()>, dim3(static_cast<unsigned>(params.rows)), dim3(threads_for(params.k)),
                 params, static_cast<size_t>(params.k) * sizeof(float));
  });
}

void round_held_rows(Launcher& launcher, const RoundParams& params) {
  with_octets(params.k, [&](auto own) {
    launcher.add(round_kernel<own()>, dim3(static_cast<unsigned>(params.rows)), dim3(threads_for(params.k)),
                 params);
  });
}

}  // namespace tercet::cuda
