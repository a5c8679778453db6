#include "backend/cuda/kernels/attention_blocks.h"
#include "backend/cuda/kernels/weighing.cuh"
#include "backend/cuda/kernels/write_kv.h"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 8;

/// A warp a row and head: q heads, then k heads, then v heads.
__global__ void __launch_bounds__(kWarps * 32) write_kv_kernel(WriteKvAndQueriesParams all) {
  after_earlier_kernels();
  const WriteKvParams& p = all.write;
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
    if (head < p.heads) {
      const int64_t index = row * p.heads + head;
      return put_query(all.queries.halves + index * kHead, all.queries.powers + index, x);
    }
  }
  const int position = p.places.position[row];
  const int page = p.places.pages[p.places.first_page[row] + position / 64];
  const float size = is_value ? largest_of(x) : size_of(x);
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

void write_kv_and_queries(Launcher& launcher, const WriteKvAndQueriesParams& params) {
  const int heads = params.write.heads + 2 * params.write.cache.heads;
  launcher.add(
      write_kv_kernel,
      dim3(static_cast<unsigned>(params.write.rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)),
      dim3(kWarps * 32), params);
}

}  // namespace tercet::cuda
