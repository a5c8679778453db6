#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/pieces.cuh"
#include "backend/cuda/kernels/product_many.h"
#include "backend/cuda/kernels/wgmma.cuh"

namespace tercet::cuda {
namespace {

// A block is four warpgroups: one copies, three multiply, 64 outputs each, a tile a warp. A group's sums are
// made by wgmma and folded (rule 2) while another warpgroup's are made. Weights become fp16 in registers:
// q·2^-24 or q·2^-20 is q masked in place, a subnormal; rows are scaled to match (Rounded).

constexpr int kGroup = 128;  // threads
constexpr int kMultiplying = 3;
constexpr int kMultiplyThreads = kMultiplying * kGroup;
constexpr int kThreads = kGroup + kMultiplyThreads;
constexpr int kTilesHere = kMultiplying * 4;
static_assert(kTilesHere == kManyBlockTiles);

/// Shared memory, in bytes: stages, each of the rows, the weights, their scales, the rows' sums and leaf
/// units; then the sums of leaves, y's rows, barriers.
template <int kPlanes, int kTokens>
struct Layout {
  static constexpr int kBlocks = kTokens <= 32 && kPlanes == 1 ? 2 : 1;  // of a multiprocessor
  static constexpr int kCopyRegisters = 40;
  static constexpr int kMultiplyRegisters = kBlocks == 2 ? 72 : 152;
  static constexpr int kWeights = kTokens * 128;
  static constexpr int kScales = kWeights + kTilesHere * kPlanes * kBlockBytes;
  static constexpr int kSums = kScales + kTilesHere * kTile * 4;
  static constexpr int kUnits = kSums + kTokens * 4;
  static constexpr int kStage = (kUnits + kTokens * 4 + 1023) / 1024 * 1024;
  static constexpr int kTotalBytes = kTilesHere * kTile * kTokens * 4;
  static constexpr int kYRowBytes = kMultiplying * 2 * kTokens * 4;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kMost =
      ((kBlocks == 2 ? 113 : 227) * 1024 - kTotalBytes - kYRowBytes - kBarrierBytes) / kStage;
  static constexpr int kStages = kMost < 10 ? kMost : 10;
  static constexpr int kTotals = kStages * kStage;
  static constexpr int kYRows = kTotals + kTotalBytes;
  static constexpr int kBarriers = kYRows + kYRowBytes;
  static constexpr int kBytes = kBarriers + kBarrierBytes;
  static_assert(kStages >= 4);

  /// Barriers of a stage, from the beginning of shared memory on.
  __device__ static uint32_t full(uint32_t begin, int stage) { return begin + kBarriers + stage * 16; }
  __device__ static uint32_t empty(uint32_t begin, int stage) { return begin + kBarriers + stage * 16 + 8; }
};

/// Stages in turn, with the parity of their barriers.
template <int kStages>
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

/// Where the sum of row i lies: a lane's of two columns of eight together.
__device__ inline int sum_slot(int i) { return i / 16 * 16 + i % 8 / 2 * 4 + i / 8 % 2 * 2 + i % 2; }

/// This copying thread's part of a piece of work's weights, group by group.
template <int kPlanes, int kTokens>
struct WeightsCopy {
  using L = Layout<kPlanes, kTokens>;
  static constexpr int kTiles = kTilesHere / 4;  // of a warp
  const uint8_t* values;
  const uint8_t* scales;
  uint32_t tiles[kTiles];  // bytes from `values` on

  __device__ WeightsCopy(const FewProductParams& p, const Work& work, int first) {
    const int thread = static_cast<int>(threadIdx.x);
    values = p.weights.values + work.expert * p.values_stride + first * (kPlanes * kBlockBytes);
    scales = p.weights.scales + work.expert * p.scales_stride + first * (kTile * 4) +
             int64_t{max(tile_at<kTilesHere>(p, work.part, min(thread / 4, kTilesHere - 1)), 0)} *
                 p.weights.groups() * (kTile * 4) +
             thread % 4 * 16;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = max(tile_at<kTilesHere>(p, work.part, thread / 32 + 4 * i), 0);
      tiles[i] =
          static_cast<uint32_t>(tile * p.weights.blocks()) * (kPlanes * kBlockBytes) + thread % 32 * 16;
    }
  }

  __device__ void ask(uint32_t stage) const {
    const int thread = static_cast<int>(threadIdx.x);
    const uint32_t to = stage + L::kWeights + thread / 32 * kPlanes * kBlockBytes + thread % 32 * 16;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        copy_async(to + (4 * i * kPlanes + plane) * kBlockBytes, values + tiles[i] + plane * kBlockBytes);
      }
    }
    if (thread < kTilesHere * 4) copy_async(stage + L::kScales + thread * 16, scales);
  }

  __device__ void next() {
    values += kPlanes * kBlockBytes;
    scales += kTile * 4;
  }
};

/// Asks for the weights of a block's first piece of work, as far as stages go; returns for how many. Which
/// weights these are, an earlier kernel may decide where there are items.
template <int kPlanes, int kTokens>
__device__ int ask_ahead(const FewProductParams& p, uint32_t begin, int parts) {
  using L = Layout<kPlanes, kTokens>;
  if (p.items != nullptr) return 0;
  const Work work = work_at<kTokens>(p, static_cast<int>(blockIdx.x), parts);
  const int per_leaf = p.weights.groups() / p.weights.leaves;
  const int count = min(work.leaves * per_leaf, L::kStages);
  WeightsCopy<kPlanes, kTokens> weights(p, work, work.leaf * per_leaf);
#pragma unroll 1
  for (int stage = 0; stage < count; ++stage) {
    weights.ask(begin + stage * L::kStage);
    weights.next();
  }
  return count;
}

/// `ahead`: stages whose weights have been asked for.
template <int kPlanes, int kTokens>
__device__ void copy_all(const FewProductParams& p, uint32_t begin, int count, int parts, int ahead) {
  using L = Layout<kPlanes, kTokens>;
  constexpr int kRowPieces = kTokens * 8 / kGroup;
  const int thread = static_cast<int>(threadIdx.x);
  const int groups = p.weights.groups();
  const int per_leaf = groups / p.weights.leaves;
  const uint32_t rows_at = swizzled(thread / 8, thread % 8);
  const uint32_t sums_at = L::kSums + sum_slot(thread) * 4;
  Turn<L::kStages> turn;
  for (int index = static_cast<int>(blockIdx.x); index < count; index += static_cast<int>(gridDim.x)) {
    const Work work = work_at<kTokens>(p, index, parts);
    const int first = work.leaf * per_leaf;
    const int end = first + work.leaves * per_leaf;
    WeightsCopy<kPlanes, kTokens> weights(p, work, first);
    const auto* halves = reinterpret_cast<const uint8_t*>(p.x.halves) + first * (kBlock * 2);
    uint32_t rows[kRowPieces];  // bytes from `halves` on
#pragma unroll
    for (int i = 0; i < kRowPieces; ++i) {
      const int64_t row = x_row(p, work, min(thread / 8 + 16 * i, work.count - 1));
      rows[i] = static_cast<uint32_t>(row) * static_cast<uint32_t>(2 * p.weights.k) + thread % 8 * 16;
    }
    // Sums of each group, or, by the same threads afterwards, the unit of its leaf.
    const int64_t row = x_row(p, work, min(thread % kTokens, work.count - 1));
    const float* sums = p.x.sums + row * groups + first;
    const float* units = p.x.leaf_units + row * p.weights.leaves + work.leaf;
    int left = per_leaf;
#pragma unroll 1
    for (int g = first; g < end; ++g) {
      const uint32_t stage = begin + turn.stage * L::kStage;
      barrier_wait(L::empty(begin, turn.stage), turn.parity ^ 1U);
      if (ahead > 0) {
        --ahead;
      } else {
        weights.ask(stage);
      }
      weights.next();
#pragma unroll
      for (int i = 0; i < kRowPieces; ++i) copy_async(stage + rows_at + i * kGroup * 16, halves + rows[i]);
      halves += kBlock * 2;
      if (thread < kTokens) {
        copy_word_async(stage + sums_at, sums);
        if (left == 1) copy_word_async(stage + sums_at + kTokens * 4, units);
      }
      ++sums;
      if (--left == 0) {
        ++units;
        left = per_leaf;
      }
      barrier_arrive_after_copies(L::full(begin, turn.stage));
      turn.next();
    }
  }
}

/// Begins the sums of a group for a warp's tile and all rows.
template <int kPlanes, int kSums>
__device__ inline void multiply(float (&d)[kPlanes][kSums], const uint4 (&weights)[kPlanes], uint64_t rows) {
  uint32_t a[kPlanes][16];
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    unpack(a[plane], weights[plane]);
    hold(d[plane]);
  }
  wgmma_fence();
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t(&from)[16] = a[plane];
      wgmma(d[plane], from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3], rows + 2 * i, i);
    }
  }
  wgmma_commit();
}

/// Links of rule 2's chains, in units of the leaf; `sums` from this lane's first row on.
template <int kPlanes, int kSums>
__device__ inline void fold(float (&acc)[kSums], float (&d)[kPlanes][kSums], uint2 scales, uint32_t sums) {
  const float s[2] = {low_half(scales.x), low_half(scales.y)};
  const float b[2] = {high_half(scales.x), high_half(scales.y)};
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) hold(d[plane]);
#pragma unroll
  for (int j = 0; j < kSums / 8; ++j) {
    const float4 sum = read_floats(sums + 64 * j);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& to = acc[8 * j + i];
      const int of = i / 2 % 2;
      if constexpr (kPlanes == 2) to = fma_(16.0F * s[of], d[0][8 * j + i], to);
      to = fma_(s[of], d[kPlanes - 1][8 * j + i], to);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& to = acc[8 * j + i];
      to = fma_(b[i / 2 % 2], i < 4 ? (i % 2 == 0 ? sum.x : sum.y) : (i % 2 == 0 ? sum.z : sum.w), to);
    }
  }
}

/// The end of a leaf: its sums join those of the leaves before; of the last leaf acc receives the total.
template <int kSums>
__device__ inline void end_leaf(float (&acc)[kSums], uint32_t totals, uint32_t units, bool first, bool last) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const float2 unit = read_two_floats(units + j / 2 * 64 + j % 2 * 8);
    float4 sum = {acc[4 * j] * unit.x, acc[4 * j + 1] * unit.y, acc[4 * j + 2] * unit.x,
                  acc[4 * j + 3] * unit.y};
    const uint32_t total = totals + j * kMultiplyThreads * 16;
    if (!first) {
      const float4 before = read_floats(total);
      sum = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
    }
    if (!last) write_floats(total, sum);
    acc[4 * j] = last ? sum.x : 0.0F;
    acc[4 * j + 1] = last ? sum.y : 0.0F;
    acc[4 * j + 2] = last ? sum.z : 0.0F;
    acc[4 * j + 3] = last ? sum.w : 0.0F;
  }
}

template <int kSums>
__device__ inline void write(const FewProductParams& p, float* y, int tile, const float (&values)[kSums],
                             uint32_t y_rows, int columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int n = tile * kTile + lane / 4;
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = read_int(y_rows + (8 * j + lane % 4 * 2 + e) * 4);
      if (row < 0) continue;
      float* const to = y + int64_t{row} * p.ldy + n;
      if (n < columns) to[0] = values[4 * j + e];
      if (n + 8 < columns) to[8] = values[4 * j + 2 + e];
    }
  }
}

/// Gate's warps apply the values of up's, which lie half a block of threads further.
template <int kSums>
__device__ inline void meet(float (&acc)[kSums], uint32_t totals, bool is_up) {
  if (is_up) {
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      write_floats(totals + j * kMultiplyThreads * 16,
                   {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]});
    }
  }
  named_barrier(1 + kMultiplying, kMultiplyThreads);
  if (!is_up) {
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const float4 up = read_floats(totals + (j * kMultiplyThreads + kMultiplyThreads / 2) * 16);
      acc[4 * j] = swiglu(acc[4 * j], up.x);
      acc[4 * j + 1] = swiglu(acc[4 * j + 1], up.y);
      acc[4 * j + 2] = swiglu(acc[4 * j + 2], up.z);
      acc[4 * j + 3] = swiglu(acc[4 * j + 3], up.w);
    }
  }
  named_barrier(1 + kMultiplying, kMultiplyThreads);
}

template <int kPlanes, int kTokens>
__device__ void multiply_all(const FewProductParams& p, uint32_t begin, int count, int parts) {
  using L = Layout<kPlanes, kTokens>;
  constexpr int kSums = kTokens / 2;
  const int thread = static_cast<int>(threadIdx.x) - kGroup;
  const int group = thread / kGroup;
  const int slot = thread / 32;
  const int lane = thread % 32;
  const int in_group = thread % kGroup;
  const int per_leaf = p.weights.groups() / p.weights.leaves;
  const uint32_t totals = begin + L::kTotals + thread * 16;
  const uint32_t weights_at = L::kWeights + slot * kPlanes * kBlockBytes + lane * 16;
  const uint32_t scales_at = L::kScales + slot * kTile * 4 + lane / 4 * 8;
  const uint32_t sums_at = L::kSums + lane % 4 * 16;
  Turn<L::kStages> turn;
  int parity = 0;  // of the pieces of work
  float acc[kSums], d[kPlanes][kSums];
  for (int index = static_cast<int>(blockIdx.x); index < count; index += static_cast<int>(gridDim.x)) {
    const Work work = work_at<kTokens>(p, index, parts);
    int id = -1;
    if (in_group < work.count) {
      id = static_cast<int>(y_row(p, work, in_group));
      if (p.unfit != nullptr && work.part == 0 && work.leaf == 0 && group == 0) {
        const int64_t row = x_row(p, work, in_group);
        if (p.unfit[row] != 0) p.failed[row] = 1;
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSums; ++i) acc[i] = 0.0F;
    int leaf = 0, left = per_leaf;
#pragma unroll 1
    for (int g = work.leaves * per_leaf; g > 0; --g) {
      const uint32_t stage = begin + turn.stage * L::kStage;
      barrier_wait(L::full(begin, turn.stage), turn.parity);
      uint4 weights[kPlanes];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        weights[plane] = read_words(stage + weights_at + plane * kBlockBytes);
      }
      const uint2 scales = read_pair(stage + scales_at);
      fence_for_async();
      multiply<kPlanes>(d, weights, rows_descriptor(stage));
      wgmma_wait<0>();
      fold<kPlanes>(acc, d, scales, stage + sums_at);
      if (--left == 0) {
        end_leaf(acc, totals, stage + sums_at + kTokens * 4, leaf == 0, leaf == work.leaves - 1);
        ++leaf;
        left = per_leaf;
      }
      __syncwarp();
      barrier_arrive(L::empty(begin, turn.stage));
      turn.next();
    }
    const uint32_t y_rows = begin + L::kYRows + (2 * group + parity) * kTokens * 4;
    parity ^= 1;
    if (in_group < kTokens) write_int(y_rows + in_group * 4, id);
    named_barrier(1 + group, kGroup);
    const bool is_up = p.swiglu != 0 && slot >= kTilesHere / 2;
    if (p.swiglu != 0) meet(acc, totals, is_up);
    const int tile = tile_at<kTilesHere>(p, work.part, slot);
    if (tile >= 0 && !is_up)
      write(p, p.y + work.leaf * p.leaf_stride, tile, acc, y_rows,
            p.swiglu != 0 ? p.weights.n / 2 : p.weights.n);
  }
}

template <int kPlanes, int kTokens>
__global__ void __launch_bounds__(kThreads, (Layout<kPlanes, kTokens>::kBlocks))
    many_kernel(FewProductParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  using L = Layout<kPlanes, kTokens>;
  const uint32_t begin = shared_begin(memory);
  let_later_kernels_begin();
  const int parts = many_parts(p.weights, p.swiglu);
  int ahead = 0;
  if (threadIdx.x < kGroup) ahead = ask_ahead<kPlanes, kTokens>(p, begin, parts);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < L::kStages; ++stage) {
      barrier_init(L::full(begin, stage), kGroup);
      barrier_init(L::empty(begin, stage), kTilesHere * 32);
    }
  }
  __syncthreads();
  wait_for_earlier_kernels();
  const int count = slots_of(p) * parts;
  if (threadIdx.x < kGroup) {
    fewer_registers<L::kCopyRegisters>();
    copy_all<kPlanes, kTokens>(p, begin, count, parts, ahead);
  } else {
    more_registers<L::kMultiplyRegisters>();
    multiply_all<kPlanes, kTokens>(p, begin, count, parts);
  }
}

template <int kPlanes, int kTokens>
void launch(Launcher& launcher, const FewProductParams& p, int processors) {
  using L = Layout<kPlanes, kTokens>;
  const int64_t most =
      int64_t{p.slots} * many_parts(p.weights, p.swiglu) * (p.leaf_stride != 0 ? p.weights.leaves : 1);
  const int64_t blocks = processors * L::kBlocks;
  launcher.add(many_kernel<kPlanes, kTokens>, dim3(static_cast<unsigned>(most < blocks ? most : blocks)),
               dim3(kThreads), p, L::kBytes);
}

}  // namespace

void product_many(Launcher& launcher, const FewProductParams& params, int together, int processors) {
  FewProductParams p = params;
  if (p.items == nullptr) p.slots = (p.rows + together - 1) / together;
  const bool two = p.weights.planes == 2;
  if (together == 16) {
    two ? launch<2, 16>(launcher, p, processors) : launch<1, 16>(launcher, p, processors);
  } else if (together == 32) {
    two ? launch<2, 32>(launcher, p, processors) : launch<1, 32>(launcher, p, processors);
  } else if (together == 64) {
    launch<1, 64>(launcher, p, processors);
  } else {
    launch<1, 128>(launcher, p, processors);
    if (p.items == nullptr) return;
    p.narrower = 1;
    launch<1, 96>(launcher, p, processors);
    p.narrower = 2;
    launch<1, 64>(launcher, p, processors);
    p.narrower = 3;
    launch<1, 32>(launcher, p, processors);
  }
}

}  // namespace tercet::cuda
