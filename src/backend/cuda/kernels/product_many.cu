#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/product_many.h"
#include "backend/cuda/kernels/wgmma.cuh"

namespace tercet::cuda {
namespace {

// A block is three warpgroups: one copies, two multiply. Each of the two has 128 outputs in two halves of 64,
// so that one half's sums are folded (rule 2) while the tensor cores make the other's. Weights become fp16 in
// registers: q·2^-24 or q·2^-20 is q masked in place, a subnormal; rows are scaled to match (Rounded).

constexpr int kGroup = 128;  // threads
constexpr int kThreads = 3 * kGroup;
constexpr int kCopyRegisters = 56, kMultiplyRegisters = 224;
constexpr int kTilesHere = 16;  // 256 outputs
constexpr int kSharedMost = 224 * 1024;

/// Shared memory, in bytes: of each stage the rows, the weights, their scales, the rows' sums and leaf units;
/// then the sums of leaves, barriers.
template <int kPlanes, int kTokens>
struct Layout {
  static constexpr int kRowBytes = kTokens * 128;
  static constexpr int kWeightBytes = kTilesHere * kPlanes * kBlockBytes;
  static constexpr int kScaleBytes = kTilesHere * kTile * 4;
  static constexpr int kSumBytes = 2 * kTokens * 4;
  static constexpr int kStage = kRowBytes + kWeightBytes + kScaleBytes + kSumBytes;
  static constexpr int kTotals = kTilesHere * kTile * kTokens * 4;
  static constexpr int kOthers = 1024 + 2 * 2 * kTokens * 4 + 1024;  // barriers, y's rows, alignment
  static constexpr int kMost = (kSharedMost - kTotals - kOthers) / kStage;
  static constexpr int kStages = kMost < 10 ? kMost : 10;
  static constexpr int kBytes = kStages * kStage + kTotals + kOthers;
  static_assert(kStages >= 4);
};

template <int kPlanes, int kTokens>
struct Shared {
  using L = Layout<kPlanes, kTokens>;
  uint8_t* base;
  uint32_t address;

  __device__ explicit Shared(uint8_t* memory) {
    const uint32_t at = shared_address(memory);
    const uint32_t skip = (1024U - at % 1024U) % 1024U;
    base = memory + skip;
    address = at + skip;
  }
  __device__ static int rows(int stage) { return stage * L::kRowBytes; }
  __device__ static int weights(int stage) { return L::kStages * L::kRowBytes + stage * L::kWeightBytes; }
  __device__ static int scales(int stage) {
    return L::kStages * (L::kRowBytes + L::kWeightBytes) + stage * L::kScaleBytes;
  }
  __device__ static int sums(int stage) {
    return L::kStages * (L::kRowBytes + L::kWeightBytes + L::kScaleBytes) + stage * L::kSumBytes;
  }
  __device__ static int totals() { return L::kStages * L::kStage; }
  __device__ static int y_rows(int group, int turn) {
    return totals() + L::kTotals + (2 * group + turn) * kTokens * 4;
  }
  __device__ uint32_t full(int stage) const { return address + y_rows(2, 0) + stage * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
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

/// What a block works at: rows or pairs first … first + count, outputs of `part`.
struct Work {
  int first, count, part;
  int64_t expert;
};

__device__ inline int parts_of(const FewProductParams& p) {
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  return p.swiglu != 0 ? (tiles / 2 + 7) / 8 : (tiles + kTilesHere - 1) / kTilesHere;
}

template <int kTokens>
__device__ inline Work work_at(const FewProductParams& p, int index, int parts) {
  Work out{index / parts * kTokens, 0, index % parts, 0};
  if (p.items != nullptr) {
    const PairItem item = p.items[index / parts];
    out.first = item.first;
    out.count = item.count;
    out.expert = item.expert;
  } else {
    out.count = min(kTokens, p.rows - out.first);
  }
  return out;
}

/// The tile of a slot: eight of each multiplying warpgroup, a warp's two are four apart. With SwiGLU the
/// first is of gate and the second of up. −1: none.
__device__ inline int tile_at(const FewProductParams& p, int part, int slot) {
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  if (p.swiglu == 0) return part * kTilesHere + slot < tiles ? part * kTilesHere + slot : -1;
  const int of_half = part * 8 + slot / 8 * 4 + slot % 4;
  return of_half < tiles / 2 ? of_half + slot / 4 % 2 * (tiles / 2) : -1;
}

__device__ inline int64_t y_row(const FewProductParams& p, const Work& work, int i) {
  return p.items != nullptr ? p.sorted[work.first + i] : work.first + i;
}
__device__ inline int64_t x_row(const FewProductParams& p, const Work& work, int i) {
  if (p.items != nullptr) return y_row(p, work, i) / p.x_div;
  return p.ids != nullptr ? p.ids[work.first + i] : work.first + i;
}

template <int kPlanes, int kTokens>
__device__ void copy_all(const FewProductParams& p, const Shared<kPlanes, kTokens>& s, int count, int parts) {
  using L = Layout<kPlanes, kTokens>;
  constexpr int kRowPieces = (kTokens * 8 + kGroup - 1) / kGroup;
  const int thread = static_cast<int>(threadIdx.x);
  const int groups = p.weights.groups();
  const int per_leaf = groups / p.weights.leaves;
  const uint32_t weights_at =
      s.address + s.weights(0) + thread / 32 * kPlanes * kBlockBytes + thread % 32 * 16;
  const uint32_t rows_at = s.address + s.rows(0) + swizzled(thread / 8, thread % 8);
  const uint32_t scales_at = s.address + s.scales(0) + thread * 16;
  const uint32_t sums_at = s.address + s.sums(0) + thread * 4;
  Turn<L::kStages> turn;
  for (int index = static_cast<int>(blockIdx.x); index < count; index += static_cast<int>(gridDim.x)) {
    const Work work = work_at<kTokens>(p, index, parts);
    const uint8_t* weights[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[i] = tile_values(p.weights, max(tile_at(p, work.part, thread / 32 + 4 * i), 0)) +
                   work.expert * p.values_stride + thread % 32 * 16;
    }
    const uint8_t* scales = tile_scales(p.weights, max(tile_at(p, work.part, thread / 4 % 16), 0)) +
                            work.expert * p.scales_stride + thread % 4 * 16;
    const uint16_t* rows[kRowPieces];
#pragma unroll
    for (int i = 0; i < kRowPieces; ++i) {
      const int row = (thread + kGroup * i) / 8 % kTokens;
      rows[i] = p.x.halves + x_row(p, work, min(row, work.count - 1)) * p.weights.k + thread % 8 * 8;
    }
    const int64_t row = x_row(p, work, min(thread % kTokens, work.count - 1));
    // Sums of each group, or the unit of its leaf.
    const float* sums = thread < kTokens ? p.x.sums + row * groups : p.x.leaf_units + row * p.weights.leaves;
    int left = per_leaf;
#pragma unroll 1
    for (int g = 0; g < groups; ++g) {
      barrier_wait(s.empty(turn.stage), turn.parity ^ 1U);
      const uint32_t to_weights = weights_at + turn.stage * L::kWeightBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          copy_async(to_weights + (4 * i * kPlanes + plane) * kBlockBytes, weights[i] + plane * kBlockBytes);
        }
        weights[i] += kPlanes * kBlockBytes;
      }
      const uint32_t to_rows = rows_at + turn.stage * L::kRowBytes;
#pragma unroll
      for (int i = 0; i < kRowPieces; ++i) {
        if (kTokens * 8 >= kGroup || thread < kTokens * 8) copy_async(to_rows + i * kGroup * 16, rows[i]);
        rows[i] += kBlock;
      }
      if (thread < 64) copy_async(scales_at + turn.stage * L::kScaleBytes, scales);
      scales += kTile * 4;
      if (thread < 2 * kTokens) copy_word_async(sums_at + turn.stage * L::kSumBytes, sums);
      if (thread < kTokens || --left == 0) {
        ++sums;
        left = per_leaf;
      }
      barrier_arrive_after_copies(s.full(turn.stage));
      turn.next();
    }
  }
}

/// One plane of q of a warp's tile as the a of wgmma, four times 16 numbers.
__device__ inline void unpack(uint32_t (&a)[16], uint4 w) {
  constexpr uint32_t kFirst = 0x000f000fU, kSecond = 0x00f000f0U;
  const uint32_t words[4] = {w.x, w.z, w.y, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i] = words[i] & kFirst;
    a[4 + i] = words[i] & kSecond;
    a[8 + i] = words[i] >> 8 & kFirst;
    a[12 + i] = words[i] >> 8 & kSecond;
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

/// Links of rule 2's chains, in units of the leaf; sums of this lane's rows.
template <int kPlanes, int kSums>
__device__ inline void fold(float (&acc)[kSums], float (&d)[kPlanes][kSums], uint2 scales,
                            const float2 (&sums)[kSums / 4]) {
  const float s[2] = {low_half(scales.x), low_half(scales.y)};
  const float b[2] = {high_half(scales.x), high_half(scales.y)};
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) hold(d[plane]);
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& to = acc[4 * j + i];
      if constexpr (kPlanes == 2) to = fma_(16.0F * s[i / 2], d[0][4 * j + i], to);
      to = fma_(s[i / 2], d[kPlanes - 1][4 * j + i], to);
      to = fma_(b[i / 2], i % 2 == 0 ? sums[j].x : sums[j].y, to);
    }
  }
}

/// The end of a leaf: its sums join those of the leaves before; of the last leaf acc receives the total.
template <int kSums>
__device__ inline void end_leaf(float (&acc)[kSums], float4* totals, const float* units, bool first,
                                bool last) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const float2 unit = *reinterpret_cast<const float2*>(units + 8 * j);
    float4 sum = {acc[4 * j] * unit.x, acc[4 * j + 1] * unit.y, acc[4 * j + 2] * unit.x,
                  acc[4 * j + 3] * unit.y};
    float4& total = totals[j * 2 * kGroup];
    if (!first) {
      const float4 before = total;
      sum = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
    }
    if (!last) total = sum;
    acc[4 * j] = last ? sum.x : 0.0F;
    acc[4 * j + 1] = last ? sum.y : 0.0F;
    acc[4 * j + 2] = last ? sum.z : 0.0F;
    acc[4 * j + 3] = last ? sum.w : 0.0F;
  }
}

template <int kSums>
__device__ inline void write(const FewProductParams& p, int tile, const float (&values)[kSums],
                             const int* y_rows, int columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int n = tile * kTile + lane / 4;
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = y_rows[8 * j + lane % 4 * 2 + e];
      if (row < 0) continue;
      float* const to = p.y + int64_t{row} * p.ldy + n;
      if (n < columns) to[0] = values[4 * j + e];
      if (n + 8 < columns) to[8] = values[4 * j + 2 + e];
    }
  }
}

template <int kPlanes, int kTokens>
__device__ void multiply_all(const FewProductParams& p, const Shared<kPlanes, kTokens>& s, int count,
                             int parts) {
  using L = Layout<kPlanes, kTokens>;
  constexpr int kSums = kTokens / 2;
  const int thread = static_cast<int>(threadIdx.x) - kGroup;
  const int group = thread / kGroup;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  const int in_group = thread % kGroup;
  const int per_leaf = p.weights.groups() / p.weights.leaves;
  const int slots[2] = {group * 8 + warp, group * 8 + 4 + warp};
  auto* const totals = reinterpret_cast<float4*>(s.base + s.totals()) + thread;
  Turn<L::kStages> turn;
  int parity = 0;  // of the pieces of work
  float acc[2][kSums];
  float d0[kPlanes][kSums], d1[kPlanes][kSums];
  // What a warp multiplies in one group.
  uint4 weights[2][kPlanes];
  uint2 scales[2];
  int to_come = 0;  // groups of all the work
  const auto look = [&] {
    if (to_come == 0) return;
    --to_come;
    barrier_wait(s.full(turn.stage), turn.parity);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint8_t* const from =
          s.base + s.weights(turn.stage) + slots[half] * kPlanes * kBlockBytes + lane * 16;
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        weights[half][plane] = *reinterpret_cast<const uint4*>(from + plane * kBlockBytes);
      }
      scales[half] =
          reinterpret_cast<const uint2*>(s.base + s.scales(turn.stage) + slots[half] * kTile * 4)[lane / 4];
    }
  };
  int leaf = 0, left = per_leaf;
  const auto end = [&](int half, const float* units) {
    end_leaf(acc[half], totals + half * (kSums / 4) * 2 * kGroup, units, leaf == 0,
             leaf == p.weights.leaves - 1);
  };
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) barrier_arrive(s.empty(stage));
  };
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  const int groups = p.weights.groups();
  if (first < count) to_come = ((count - 1 - first) / step + 1) * groups;
  look();
  for (int index = first; index < count; index += step) {
    const Work work = work_at<kTokens>(p, index, parts);
    int id = -1;
    if (in_group < work.count) {
      id = static_cast<int>(y_row(p, work, in_group));
      if (p.unfit != nullptr && work.part == 0 && group == 0) {
        const int64_t row = x_row(p, work, in_group);
        if (p.unfit[row] != 0) p.failed[row] = 1;
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSums; ++i) acc[0][i] = acc[1][i] = 0.0F;
    leaf = 0;
#pragma unroll 1
    for (int g = 0; g < groups; ++g) {
      const int stage = turn.stage;
      const uint64_t rows = rows_descriptor(s.address + s.rows(stage));
      const uint2 folded[2] = {scales[0], scales[1]};
      fence_for_wgmma();
      multiply<kPlanes>(d0, weights[0], rows);
      multiply<kPlanes>(d1, weights[1], rows);
      const auto* const of_rows = reinterpret_cast<const float*>(s.base + s.sums(stage)) + lane % 4 * 2;
      float2 sums[kSums / 4];
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) sums[j] = *reinterpret_cast<const float2*>(of_rows + 8 * j);
      turn.next();
      look();
      const bool leaf_ends = --left == 0;
      wgmma_wait<1>();
      fold<kPlanes>(acc[0], d0, folded[0], sums);
      if (leaf_ends) end(0, of_rows + kTokens);
      wgmma_wait<0>();
      fold<kPlanes>(acc[1], d1, folded[1], sums);
      if (leaf_ends) {
        end(1, of_rows + kTokens);
        ++leaf;
        left = per_leaf;
      }
      release(stage);
    }
    auto* const y_rows = reinterpret_cast<int*>(s.base + s.y_rows(group, parity));
    parity ^= 1;
    if (in_group < kTokens) y_rows[in_group] = id;
    named_barrier(1 + group, kGroup);
    const int tiles[2] = {tile_at(p, work.part, slots[0]), tile_at(p, work.part, slots[1])};
    if (p.swiglu != 0) {
      if (tiles[0] < 0) continue;
#pragma unroll
      for (int i = 0; i < kSums; ++i) acc[0][i] = swiglu(acc[0][i], acc[1][i]);
      write(p, tiles[0], acc[0], y_rows, p.weights.n / 2);
      continue;
    }
    if (tiles[0] >= 0) write(p, tiles[0], acc[0], y_rows, p.weights.n);
    if (tiles[1] >= 0) write(p, tiles[1], acc[1], y_rows, p.weights.n);
  }
}

template <int kPlanes, int kTokens>
__global__ void __launch_bounds__(kThreads, 1) many_kernel(FewProductParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  using L = Layout<kPlanes, kTokens>;
  const Shared<kPlanes, kTokens> s(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < L::kStages; ++stage) {
      barrier_init(s.full(stage), kGroup);
      barrier_init(s.empty(stage), 8);  // warps that multiply
    }
  }
  __syncthreads();
  after_earlier_kernels();
  const int parts = parts_of(p);
  const int count = (p.items != nullptr ? *p.total : p.slots) * parts;
  if (threadIdx.x < kGroup) {
    fewer_registers<kCopyRegisters>();
    copy_all(p, s, count, parts);
  } else {
    more_registers<kMultiplyRegisters>();
    multiply_all(p, s, count, parts);
  }
#endif
}

template <int kPlanes, int kTokens>
void launch(Launcher& launcher, const FewProductParams& p, int blocks) {
  launcher.add(many_kernel<kPlanes, kTokens>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), p,
               Layout<kPlanes, kTokens>::kBytes);
}

}  // namespace

void product_many(Launcher& launcher, const FewProductParams& params, int together, int blocks) {
  FewProductParams p = params;
  if (p.items == nullptr) p.slots = (p.rows + together - 1) / together;
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  const int parts = p.swiglu != 0 ? (tiles / 2 + 7) / 8 : (tiles + kTilesHere - 1) / kTilesHere;
  const int64_t most = int64_t{p.slots} * parts;
  const int here = most < blocks ? static_cast<int>(most) : blocks;
  const bool two = p.weights.planes == 2;
  if (together == 16) {
    two ? launch<2, 16>(launcher, p, here) : launch<1, 16>(launcher, p, here);
  } else if (together == 32) {
    two ? launch<2, 32>(launcher, p, here) : launch<1, 32>(launcher, p, here);
  } else {
    launch<1, 64>(launcher, p, here);
  }
}

}  // namespace tercet::cuda
