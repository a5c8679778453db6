#include <cuda_fp16.h>

#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/round_many.h"
#include "backend/cuda/kernels/round_source.cuh"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kHeld = 8;  // groups whose values a warp keeps between two looks

/// A lane has two numbers of each group, which lie side by side among the halves (Rounded): at slots 2·lane
/// and the next.
struct Two {
  float a, b;
};

__device__ inline int first_number(int lane) { return lane % 4 * 16 + lane / 4 % 2 * 8 + lane / 8; }

__device__ inline Two load(const float* group) {
  const float* const from = group + first_number(static_cast<int>(threadIdx.x) % 32);
  return {from[0], from[4]};
}

__device__ inline int exponent_of(Two x) {
  return ceil_exponent(float_from_bits(warp_max(max(magnitude_bits(x.a), magnitude_bits(x.b)))));
}

struct RowOut {
  uint32_t* halves;  // pairs
  float* sums;
  float* units;
};

/// Writes group g rounded to `step`, its leaf having exponent `of_leaf`; returns what the rounding left. By
/// conversions, as round_octet() of octet.cuh.
__device__ inline Two put(const RowOut& out, int g, Two x, int step, int of_leaf) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float down = plain_power(-step - 24), up = plain_power(step + 24);
  const float2 whole = __half22float2(__floats2half2_rn(x.a * down, x.b * down));  // n·2^-24
  const int sum = warp_sum(static_cast<int>((whole.x + whole.y) * 0x1p24F));
  // In units of 2^(of_leaf − 15); numbers of odd index times 2^-4.
  const float scale = plain_power(step - of_leaf + 39 - lane / 8 % 2 * 4);
  const __half2 pair = __floats2half2_rn(whole.x * scale, whole.y * scale);
  out.halves[g * (kBlock / 2) + lane] = *reinterpret_cast<const uint32_t*>(&pair);
  if (lane == 0) out.sums[g] = static_cast<float>(sum) * plain_power(step - of_leaf - 9);
  return {fma_(-whole.x, up, x.a), fma_(-whole.y, up, x.b)};
}

/// A leaf: the exponents of all its groups decide the steps (rule 1). `rest`, where not null, receives what
/// the rounding left. False where a value is not finite or too large.
__device__ inline bool round_leaf(const float* x, int groups, const RowOut& out, float* rest) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Two held[kHeld];
  int exponents[kHeld];
  int largest = kMinExponent;
#pragma unroll
  for (int g = 0; g < kHeld; ++g) {
    if (g < groups) held[g] = load(x + g * kBlock);
  }
#pragma unroll
  for (int g = 0; g < kHeld; ++g) {
    if (g >= groups) break;
    exponents[g] = exponent_of(held[g]);
    largest = max(largest, exponents[g]);
  }
#pragma unroll 4
  for (int g = kHeld; g < groups; ++g) largest = max(largest, exponent_of(load(x + g * kBlock)));
  if (exponent_fails(largest)) return false;
  if (lane == 0) *out.units = plain_power(largest + 9);
  const auto keep = [&](int g, Two left) {
    if (rest == nullptr) return;
    rest[g * kBlock + first_number(lane)] = left.a;
    rest[g * kBlock + first_number(lane) + 4] = left.b;
  };
#pragma unroll
  for (int g = 0; g < kHeld; ++g) {
    if (g >= groups) break;
    keep(g, put(out, g, held[g], max(exponents[g], largest - 16) - 13, largest));
  }
#pragma unroll 4
  for (int g = kHeld; g < groups; ++g) {
    const Two value = load(x + g * kBlock);
    keep(g, put(out, g, value, max(exponent_of(value), largest - 16) - 13, largest));
  }
  return true;
}

/// Row `to` of the result; a row that fails becomes zeros, as does what is left of it.
__device__ inline bool round_row(const RoundParams& p, const float* x, int64_t to, float* rest) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = p.k / kBlock;
  const int leaves = p.weights.leaves;
  const int per_leaf = groups / leaves;
  auto* const halves = reinterpret_cast<uint32_t*>(p.rounded.halves + to * p.k);
  float* const sums = p.rounded.sums + to * groups;
  float* const units = p.rounded.leaf_units + to * leaves;
  bool good = true;
#pragma unroll 1
  for (int leaf = 0; leaf < leaves && good; ++leaf) {
    const int first = leaf * per_leaf;
    good =
        round_leaf(x + first * kBlock, per_leaf, {halves + first * (kBlock / 2), sums + first, units + leaf},
                   rest == nullptr ? nullptr : rest + first * kBlock);
  }
  if (good) return true;
  for (int i = lane; i < p.k / 2; i += 32) halves[i] = 0;
  for (int i = lane; i < groups; i += 32) sums[i] = 0.0F;
  for (int i = lane; i < leaves; i += 32) units[i] = 1.0F;
  for (int i = lane; rest != nullptr && i < p.k; i += 32) rest[i] = 0.0F;
  return false;
}

__global__ void __launch_bounds__(kWarps * 32) round_many_kernel(RoundParams p) {
  after_earlier_kernels();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= p.rows) return;
  const RoundSource source = source_of(p, row);
  const int parts = p.rest == nullptr ? 1 : 2;
  float* const rest = p.rest == nullptr ? nullptr : p.rest + row * p.k;
  bool good = round_row(p, source.x, row * parts, rest);
  if (rest != nullptr) {
    __syncwarp();
    good = round_row(p, rest, row * parts + 1, nullptr) && good;
  }
  if (!good && threadIdx.x % 32 == 0) p.failed[source.flag] = 1;
}

}  // namespace

void round_many(Launcher& launcher, const RoundParams& params) {
  launcher.add(round_many_kernel, dim3(static_cast<unsigned>((params.rows + kWarps - 1) / kWarps)),
               dim3(kWarps * 32), params);
}

}  // namespace tercet::cuda
