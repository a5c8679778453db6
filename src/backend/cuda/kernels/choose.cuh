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

/// A lane's logits of a row, of experts lane, lane + 32, …
template <int kPer, bool kLeaves>
__device__ inline void load_logits(const ChooseParams& p, int64_t row, float (&score)[kPer]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* first = p.logits + row * p.step * p.experts;
  const float* rest = first + int64_t{p.rest} * p.experts;
  float of_rest[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = lane + 32 * i;
    score[i] = e < p.experts ? first[e] : 0.0F;
    of_rest[i] = e < p.experts ? rest[e] : 0.0F;
  }
#pragma unroll 2
  for (int leaf = 1; kLeaves && leaf < p.leaves; ++leaf) {
    first += p.leaf_stride;
    rest += p.leaf_stride;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int e = lane + 32 * i;
      if (e >= p.experts) break;
      score[i] = score[i] + first[e];
      of_rest[i] = of_rest[i] + rest[e];
    }
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) score[i] = score[i] + of_rest[i];
}

/// A row's choice, by a warp: k times the largest that is left, ties to the lower index. A lane has experts
/// lane, lane + 32, …; at most 32·kPer. put(place, expert, weight) in ascending index. kLeaves: whether
/// p.leaves may be other than 0.
template <int kPer, bool kLeaves = false, class Put>
__device__ void choose_of_row(const ChooseParams& p, int64_t row, ChooseScratch& s, Put put) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float score[kPer];
  float bias[kPer];
  uint32_t key[kPer];  // 0: taken, or none
  bool bad = p.unfit != nullptr && p.unfit[row] != 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = lane + 32 * i;
    bias[i] = e < p.experts ? p.bias[e] : 0.0F;
    key[i] = 0;
  }
  load_logits<kPer, kLeaves>(p, row, score);
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

/// What kRankThreads threads need, for up to as many experts.
constexpr int kRankThreads = 256;
struct RankScratch {
  uint32_t keys[kRankThreads];
  int above[kRankThreads];
  int order[kMaxChosen];
  float score[kMaxChosen];
};

/// The same choice for a step of one row, by threads 0 … of a block, with a barrier of their own (`team`): an
/// expert's place is the number of those above it, which two threads count where there are no more than 128.
template <class Threads, class Put>
__device__ inline void choose_by_ranks(const ChooseParams& p, const Threads& team, RankScratch& s, Put put) {
  const int parts = p.experts <= kRankThreads / 2 ? 2 : 1;
  const int part_size = kRankThreads / parts;
  const int e = team.me & (part_size - 1);
  const int part = team.me / part_size;
  float score = 0.0F;
  uint32_t key = 0;  // none
  if (part == 0 && e < p.experts) {
    score = p.logits[e] + p.logits[int64_t{p.rest} * p.experts + e];
    const float bias = p.bias[e];
    bool bad = p.unfit != nullptr && *p.unfit != 0;
    if (not_finite(score)) {
      bad = true;
      score = 0.0F;
    }
    if (bad) *p.failed = 1;
    score = sigmoid(score);
    key = ordered_bits(score + bias);
  }
  if (part == 0) s.keys[e] = key;
  team.sync();
  const uint32_t own = s.keys[e];
  int above = 0;
#pragma unroll 4
  for (int i = part * (part_size / 2); i < (part + 1) * part_size / parts; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(s.keys + i);
    // Ties to the lower index.
    above += four.x > own || (four.x == own && i < e) ? 1 : 0;
    above += four.y > own || (four.y == own && i + 1 < e) ? 1 : 0;
    above += four.z > own || (four.z == own && i + 2 < e) ? 1 : 0;
    above += four.w > own || (four.w == own && i + 3 < e) ? 1 : 0;
  }
  if (part == 1) s.above[e] = above;
  team.sync();
  if (part == 0 && e < p.experts) {
    if (parts == 2) above += s.above[e];
    if (above < p.chosen) {
      s.order[above] = e;
      s.score[above] = score;
    }
  }
  team.sync();
  if (team.me >= p.chosen) return;
  float sum = 0.0F;
  int place = 0;  // in ascending index
  const int mine = s.order[team.me];
#pragma unroll 4
  for (int j = 0; j < p.chosen; ++j) {
    sum = sum + s.score[j];
    place += s.order[j] < mine ? 1 : 0;
  }
  sum = sum + 1e-20F;
  const float weight = s.score[team.me];
  put(place, mine, (p.normalise != 0 ? weight / sum : weight) * p.scaling);
}

}  // namespace tercet::cuda
