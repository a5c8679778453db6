#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/attention.h"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 8;

/// The tree of rule 5 over 128 values, of which lane l holds l, l + 32, l + 64 and l + 96.
__device__ inline float head_tree(const float (&x)[4]) {
  return __shfl_sync(kAll, warp_tree((x[0] + x[2]) + (x[1] + x[3])), 0);
}

__device__ inline float largest_of(const float (&x)[4]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, magnitude_bits(x[i]));
  return float_from_bits(warp_max(largest));
}

__device__ inline float squares(const float (&x)[4], float scale) {
  float squared[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) squared[i] = fma_(x[i] * scale, x[i] * scale, 0.0F);
  return head_tree(squared);
}

/// A warp a row and head: q heads, then k heads, then v heads.
__global__ void __launch_bounds__(kWarps * 32) write_kv_kernel(WriteKvParams p) {
  after_earlier_kernels();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (head >= p.heads + 2 * p.cache.heads) return;
  float* const at = p.qkv + row * p.ld + head * kHead + lane;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = at[32 * i];
  const bool is_value = head >= p.heads + p.cache.heads;
  if (!is_value) {
    const float* const weight = (head < p.heads ? p.q_norm : p.k_norm) + lane;
    const float r = 1.0F / sqrt_(squares(x, 1.0F) / static_cast<float>(kHead) + p.eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = (x[i] * r) * weight[32 * i];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Angle angle = p.angles[row * 64 + lane + 32 * i];
      const float low = x[i];
      const float high = x[i + 2];
      x[i] = fma_(-high, angle.sine, low * angle.cosine);
      x[i + 2] = fma_(low, angle.sine, high * angle.cosine);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) at[32 * i] = x[i];
    if (head < p.heads) return;
  }
  const int position = p.places.position[row];
  const int page = p.places.pages[p.places.first_page[row] + position / 64];
  float size = largest_of(x);
  const int e = ceil_exponent(size);
  if (is_value) {
    const int64_t slot = p.cache.slot(p.layer, page, head - p.heads - p.cache.heads);
    HeadNumber v{};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v = round_head(x[i], size, 10);
      p.cache.values[slot * kHead + (lane + 32 * i) * 64 + position % 64] =
          half_bits(static_cast<float>(v.n) * 0x1p-10F);
    }
    if (lane == 0) p.cache.value_exponents[slot + position % 64] = static_cast<int8_t>(v.exponent);
    if (lane == 0 && !v.finite) p.failed[row] = 1;
    return;
  }
  if (!exponent_fails(e)) {
    size = power_of_two(e) * sqrt_(squares(x, power_of_two(-e))) * (1.0F + 0x1p-9F);
  }
  const int64_t slot = p.cache.slot(p.layer, page, head - p.heads) + position % 64;
  HeadNumber k{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    k = round_head(x[i], size, 12);
    p.cache.keys[slot * kHead + lane + 32 * i] = half_bits(static_cast<float>(k.n) * 0x1p-12F);
  }
  if (lane == 0) p.cache.key_exponents[slot] = static_cast<int8_t>(k.exponent);
  if (lane == 0 && !k.finite) p.failed[row] = 1;
}

}  // namespace

void write_kv_by_warps(Launcher& launcher, const WriteKvParams& params) {
  const int heads = params.heads + 2 * params.cache.heads;
  launcher.add(write_kv_kernel,
               dim3(static_cast<unsigned>(params.rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)),
               dim3(kWarps * 32), params);
}

}  // namespace tercet::cuda
