// The router's choice of a row (rule 10).
#pragma once

#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/router.h"

namespace tercet::cuda {

/// Floats in the order of their bits; −0 does not occur.
__device__ inline uint32_t ordered_bits(float x) {
  const uint32_t bits = float_bits(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// What a warp needs.
struct ChooseScratch {
  float score[kMaxChosen];
  int order[kMaxChosen];
};

/// A row's choice, by a warp: k times the largest that is left, ties to the lower index. A lane has experts
/// lane, lane + 32, …; at most 32·kPer. put(place, expert, weight) in ascending index.
template <int kPer, class Put>
__device__ void choose_of_row(const ChooseParams& p, int64_t row, ChooseScratch& s, Put put) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* first = p.logits + row * p.step * p.experts;
  const float* rest = first + int64_t{p.rest} * p.experts;
  float score[kPer];
  float bias[kPer];
  uint32_t key[kPer];  // 0: taken, or none
  bool bad = p.unfit != nullptr && p.unfit[row] != 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = lane + 32 * i;
    score[i] = e < p.experts ? first[e] + rest[e] : 0.0F;
    bias[i] = e < p.experts ? p.bias[e] : 0.0F;
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
    key[i] = ordered_bits(score[i] + bias[i]);
  }
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
      s.order[j] = index;
      s.score[j] = value;
    }
  }
  __syncwarp();
  sum = sum + 1e-20F;
#pragma unroll 1
  for (int j = lane; j < p.chosen; j += 32) {
    int place = 0;  // in ascending index
#pragma unroll 1
    for (int i = 0; i < p.chosen; ++i) place += s.order[i] < s.order[j] ? 1 : 0;
    const float own = s.score[j];
    put(place, s.order[j], (p.normalise != 0 ? own / sum : own) * p.scaling);
  }
}

}  // namespace tercet::cuda
