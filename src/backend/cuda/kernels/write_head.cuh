// Head norms, RoPE and rounding of one head (rules 6 to 8), its query or its place in the cache.
#pragma once

#include "backend/cuda/kernels/weighing.cuh"
#include "backend/cuda/kernels/write_kv.h"

namespace tercet::cuda {

/// Where a head's numbers go.
struct HeadPlace {
  uint16_t* halves;
  int8_t* exponent;  // of keys and values
  float* power;      // of queries
};

/// A row's head, by a warp: q heads come first, then k heads, then v heads. Queries go where `query` says; in
/// qkv they are replaced where `in_place`.
__device__ inline void write_head(const WriteKvParams& p, int64_t row, int head, int position, int first_page,
                                  HeadPlace query, bool in_place) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_query = head < p.heads;
  const bool is_value = head >= p.heads + p.cache.heads;
  float* const at = p.qkv + row * p.ld + head * kHead + lane;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = at[32 * i];
  HeadPlace to = query;
  if (!is_query) {
    const int page = p.places.pages[first_page + position / 64];
    const int64_t slot = p.cache.slot(p.layer, page, head - p.heads - (is_value ? p.cache.heads : 0));
    to.halves = is_value ? p.cache.values + slot * kHead + position % 64
                         : p.cache.keys + (slot + position % 64) * kHead;
    to.exponent = (is_value ? p.cache.value_exponents : p.cache.key_exponents) + slot + position % 64;
  }
  if (!is_value) {
    const float* const weight = (is_query ? p.q_norm : p.k_norm) + lane;
    Angle angles[2];
    float weights[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) angles[i] = p.angles[row * 64 + lane + 32 * i];
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = weight[32 * i];
    const float r = 1.0F / sqrt_(squares(x, 1.0F) / static_cast<float>(kHead) + p.eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = (x[i] * r) * weights[i];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float low = x[i];
      const float high = x[i + 2];
      x[i] = fma_(-high, angles[i].sine, low * angles[i].cosine);
      x[i + 2] = fma_(low, angles[i].sine, high * angles[i].cosine);
    }
    if (in_place) {
#pragma unroll
      for (int i = 0; i < 4; ++i) at[32 * i] = x[i];
    }
  }
  const float size = is_value ? largest_of(x) : size_of(x);
  const int e = ceil_exponent(size);
  const bool finite = !exponent_fails(e);
  const int step = e - (is_value ? 10 : 12);
  const float down = finite ? plain_power(-e) : 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int d = lane + 32 * i;
    const float value = finite ? round_plainly(x[i], step) * down : 0.0F;
    to.halves[is_query ? query_slot(d) : is_value ? d * 64 : d] = half_bits(value);
  }
  if (lane > 0) return;
  if (is_query) {
    *to.power = finite ? plain_power(e) : -1.0F;
  } else {
    *to.exponent = static_cast<int8_t>(finite ? e : 0);
    if (!finite) p.failed[row] = 1;
  }
}

/// The same, where queries go to memory.
__device__ inline void write_head(const WriteKvAndQueriesParams& p, int64_t row, int head) {
  const int64_t index = row * p.write.heads + head;
  write_head(p.write, row, head, p.write.places.position[row], p.write.places.first_page[row],
             {p.queries.halves + index * kHead, nullptr, p.queries.powers + index}, true);
}

}  // namespace tercet::cuda
