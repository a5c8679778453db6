// Head norms, RoPE and rounding of one head (rules 6 to 8), its query or its place in the cache.
#pragma once

#include "backend/cuda/kernels/weighing.cuh"
#include "backend/cuda/kernels/write_kv.h"

namespace tercet::cuda {

/// Of a row's heads q heads come first, then k heads, then v heads.
struct HeadRole {
  bool query, value;
  int kv_head;  // of keys and values
};
__device__ inline HeadRole head_role(const WriteKvParams& p, int head) {
  const bool value = head >= p.heads + p.cache.heads;
  return {head < p.heads, value, head - p.heads - (value ? p.cache.heads : 0)};
}

/// What lane l has of a rounded head: dimensions l + 32·i, divided by 2^exponent. Zeros where not finite.
struct RoundedHead {
  uint16_t halves[4];
  int exponent;
  bool finite;
};

/// A head by a warp; x, likewise, becomes what its norm (`weight`, not of values) and RoPE make of it.
__device__ inline RoundedHead round_whole_head(float (&x)[4], const HeadRole& role, const float* weight,
                                               const Angle* row_angles, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (!role.value) {
    Angle angles[2];
    float weights[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) angles[i] = row_angles[lane + 32 * i];
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = weight[lane + 32 * i];
    const float r = 1.0F / sqrt_(squares(x, 1.0F) / static_cast<float>(kHead) + eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = (x[i] * r) * weights[i];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float low = x[i];
      const float high = x[i + 2];
      x[i] = fma_(-high, angles[i].sine, low * angles[i].cosine);
      x[i + 2] = fma_(low, angles[i].sine, high * angles[i].cosine);
    }
  }
  const float size = role.value ? largest_of(x) : size_of(x);
  const int e = ceil_exponent(size);
  RoundedHead out{};
  out.finite = !exponent_fails(e);
  out.exponent = out.finite ? e : 0;
  const int step = e - (role.value ? 10 : 12);
  const float down = out.finite ? plain_power(-e) : 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.halves[i] = half_bits(out.finite ? round_plainly(x[i], step) * down : 0.0F);
  }
  return out;
}

/// A query's halves and its power (Queries).
__device__ inline void put_query(uint16_t* halves, float* power, const RoundedHead& head) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) halves[query_slot(lane + 32 * i)] = head.halves[i];
  if (lane == 0) *power = head.finite ? plain_power(head.exponent) : -1.0F;
}

/// A key or value of row `row` into the cache.
__device__ inline void put_in_cache(const WriteKvParams& p, int64_t row, const HeadRole& role, int position,
                                    int first_page, const RoundedHead& head) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int page = p.places.pages[first_page + position / 64];
  const int64_t slot = p.cache.slot(p.layer, page, role.kv_head);
  const int in_block = position % 64;
  uint16_t* const to =
      role.value ? p.cache.values + slot * kHead + in_block : p.cache.keys + (slot + in_block) * kHead;
#pragma unroll
  for (int i = 0; i < 4; ++i) to[(lane + 32 * i) * (role.value ? 64 : 1)] = head.halves[i];
  if (lane > 0) return;
  (role.value ? p.cache.value_exponents : p.cache.key_exponents)[slot + in_block] =
      static_cast<int8_t>(head.exponent);
  if (!head.finite) p.failed[row] = 1;
}

/// A row's head x, likewise, to its query or its place in the cache; in qkv it replaces queries and keys, or
/// all heads (`replaces`).
__device__ inline void write_head(const WriteKvAndQueriesParams& params, int64_t row, int head, float (&x)[4],
                                  bool replaces) {
  const WriteKvParams& p = params.write;
  const HeadRole role = head_role(p, head);
  const RoundedHead rounded =
      round_whole_head(x, role, role.query ? p.q_norm : p.k_norm, p.angles + row * 64, p.eps);
  if (!role.value || replaces) {
    float* const at = p.qkv + row * p.ld + head * kHead + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) at[32 * i] = x[i];
  }
  if (role.query) {
    const int64_t index = row * p.heads + head;
    put_query(params.queries.halves + index * kHead, params.queries.powers + index, rounded);
  } else {
    put_in_cache(p, row, role, p.places.position[row], p.places.first_page[row], rounded);
  }
}

/// The same from qkv.
__device__ inline void write_head(const WriteKvAndQueriesParams& params, int64_t row, int head) {
  const float* const at = params.write.qkv + row * params.write.ld + head * kHead + threadIdx.x % 32;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = at[32 * i];
  write_head(params, row, head, x, false);
}

}  // namespace tercet::cuda
