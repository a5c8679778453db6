#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/pieces.cuh"
#include "backend/cuda/kernels/product_mma.h"
#include "backend/cuda/kernels/shared.cuh"

namespace tercet::cuda {
namespace {

// A block takes pieces of work one after another. Groups of them come by cp.async, some ahead; a warp has
// some tiles of outputs and 32 rows, whose sums stay in its registers. With SwiGLU half of its tiles are
// gate's, the others up's.

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kWarpRows = 32;
constexpr int kEights = kWarpRows / 8;
constexpr int kTilesHere = kMmaBlockTiles;

/// Shared memory, in bytes: stages, each of the rows, the weights, their scales, the rows' sums and leaf
/// units; then y's rows, of two pieces of work.
template <int kPlanesOf, int kRowsOf>
struct Layout {
  static constexpr int kPlanes = kPlanesOf, kRows = kRowsOf;
  static constexpr int kAcross = kRows / kWarpRows;             // warps that share tiles
  static constexpr int kTiles = kTilesHere * kAcross / kWarps;  // of a warp
  static constexpr int kTilesCopied = kTilesHere / kWarps;      // by a thread
  static constexpr int kRowPieces = kRows * 8 / kThreads;       // likewise
  static constexpr int kWeights = kRows * 128;
  static constexpr int kScales = kWeights + kTilesHere * kPlanes * kBlockBytes;
  static constexpr int kSums = kScales + kTilesHere * kGroupScales;
  static constexpr int kUnits = kSums + kRows * 4;
  static constexpr int kStage = (kUnits + kRows * 4 + 127) / 128 * 128;
  static constexpr int kYRowBytes = 2 * kRows * 4;
  static constexpr int kMost = (kCommonShared - kYRowBytes) / kStage;
  static constexpr int kStages = kMost < 6 ? kMost : 6;
  static constexpr int kYRows = kStages * kStage;
  static constexpr int kBytes = kYRows + kYRowBytes;
  static_assert(kTiles % 2 == 0 && kRowPieces >= 1 && kStages >= 4);
};

/// What this thread copies next: group g of the piece of work `index`, whose last is end − 1.
template <class L>
struct Fetch {
  int index, g = 0, end = 0;
  int left;  // groups of the leaf
  const uint8_t *values, *scales;
  uint32_t weights[L::kTilesCopied];  // bytes from `values` on
  uint32_t rows[L::kRowPieces];       // bytes from x.halves on
  const float *sums, *units;

  __device__ void begin(const FewProductParams& p, int parts) {
    const int thread = static_cast<int>(threadIdx.x);
    const Work work = work_at<L::kRows>(p, index, parts);
    const int groups = p.weights.groups();
    left = groups / p.weights.leaves;
    g = work.leaf * left;
    end = g + work.leaves * left;
    values = p.weights.values + work.expert * p.values_stride;
#pragma unroll
    for (int i = 0; i < L::kTilesCopied; ++i) {
      const int tile = max(tile_at<kTilesHere>(p, work.part, thread / 32 + kWarps * i), 0);
      weights[i] = static_cast<uint32_t>(tile * groups) * (L::kPlanes * kBlockBytes) + thread % 32 * 16;
    }
    const int tile = max(tile_at<kTilesHere>(p, work.part, min(thread / 4, kTilesHere - 1)), 0);
    scales = p.weights.scales + work.expert * p.scales_stride + int64_t{tile} * groups * kGroupScales +
             thread % 4 * 16;
#pragma unroll
    for (int i = 0; i < L::kRowPieces; ++i) {
      const int64_t row = x_row(p, work, min(thread / 8 + kThreads / 8 * i, work.count - 1));
      rows[i] = static_cast<uint32_t>(row) * static_cast<uint32_t>(2 * p.weights.k) + thread % 8 * 16;
    }
    const int64_t row = x_row(p, work, min(thread % L::kRows, work.count - 1));
    sums = p.x.sums + row * groups;
    units = p.x.leaf_units + row * p.weights.leaves + work.leaf;
  }

  /// Asks for the next group of `count` pieces of work, if there is one.
  __device__ void next(const FewProductParams& p, uint32_t stage, int count, int parts) {
    if (g == end) {
      index += static_cast<int>(gridDim.x);
      if (index >= count) return;
      begin(p, parts);
    }
    const int thread = static_cast<int>(threadIdx.x);
    const uint32_t to = stage + L::kWeights + thread / 32 * (L::kPlanes * kBlockBytes) + thread % 32 * 16;
    const uint32_t at = static_cast<uint32_t>(g) * (L::kPlanes * kBlockBytes);
#pragma unroll
    for (int i = 0; i < L::kTilesCopied; ++i) {
#pragma unroll
      for (int plane = 0; plane < L::kPlanes; ++plane) {
        copy_async(to + (kWarps * i * L::kPlanes + plane) * kBlockBytes,
                   values + (weights[i] + at + plane * kBlockBytes));
      }
    }
    const auto* const halves = reinterpret_cast<const uint8_t*>(p.x.halves);
#pragma unroll
    for (int i = 0; i < L::kRowPieces; ++i) {
      copy_async(stage + swizzled(thread / 8, thread % 8) + i * kThreads * 16,
                 halves + (rows[i] + static_cast<uint32_t>(g) * 128));
    }
    if (thread < kTilesHere * 4) copy_async(stage + L::kScales + thread * 16, scales + g * kGroupScales);
    if (thread < L::kRows) {
      copy_word_async(stage + L::kSums + thread * 4, sums + g);
      if (left == 1) copy_word_async(stage + L::kUnits + thread * 4, units);
    }
    ++g;
    if (--left > 0) return;
    ++units;
    left = p.weights.groups() / p.weights.leaves;
  }
};

/// Where a warp works in its block: of the tiles `tile` and on and kTilesHere / 2 + `tile` and on, half of
/// its own each; rows `row` and on.
template <class L>
struct Place {
  int tile = static_cast<int>(threadIdx.x) / 32 / L::kAcross * (L::kTiles / 2);
  int row = static_cast<int>(threadIdx.x) / 32 % L::kAcross * kWarpRows;

  /// The slot of the warp's tile i.
  __device__ int slot(int i) const {
    return tile + i % (L::kTiles / 2) + i / (L::kTiles / 2) * (kTilesHere / 2);
  }
};

/// Sums of a lane: of outputs lane/4 and lane/4 + 8 of a tile with rows 8e + lane%4·2 and the next.
template <class L>
using Sums = float[L::kTiles][kEights][4];

/// One link of rule 2's chains, in units of the leaf.
template <class L>
__device__ inline void extend(Sums<L>& acc, uint32_t stage, const Place<L>& place) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t b[kEights][2][4];
  float2 sums[kEights];
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const uint32_t rows = stage + place.row * 128 + e * 1024;
    load_matrices(b[e][0], rows + swizzled(lane % 8, lane / 8));
    load_matrices(b[e][1], rows + swizzled(lane % 8, 4 + lane / 8));
    sums[e] = read_two_floats(stage + L::kSums + (place.row + 8 * e + lane % 4 * 2) * 4);
  }
#pragma unroll
  for (int tile = 0; tile < L::kTiles; ++tile) {
    const int slot = place.slot(tile);
    float d[L::kPlanes][kEights][4] = {};
#pragma unroll
    for (int plane = 0; plane < L::kPlanes; ++plane) {
      uint32_t a[16];
      unpack(a, read_words(stage + L::kWeights + (slot * L::kPlanes + plane) * kBlockBytes + lane * 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          mma_fp16(d[plane][e], a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[e][i / 2][i % 2 * 2],
                   b[e][i / 2][i % 2 * 2 + 1]);
        }
      }
    }
    const uint2 scales = read_pair(stage + L::kScales + slot * kGroupScales + lane / 4 * 8);
    const float s[2] = {low_half(scales.x), low_half(scales.y)};
    const float bias[2] = {high_half(scales.x), high_half(scales.y)};
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& to = acc[tile][e][i];
        if constexpr (L::kPlanes == 2) to = fma_(16.0F * s[i / 2], d[0][e][i], to);
        to = fma_(s[i / 2], d[L::kPlanes - 1][e][i], to);
        to = fma_(bias[i / 2], i % 2 == 0 ? sums[e].x : sums[e].y, to);
      }
    }
  }
}

/// A leaf's sums in their own unit, added to those of the leaves before.
template <class L>
__device__ inline void end_leaf(Sums<L>& acc, uint32_t stage, const Place<L>& place, bool first,
                                Sums<L>& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const float2 unit = read_two_floats(stage + L::kUnits + (place.row + 8 * e + lane % 4 * 2) * 4);
#pragma unroll
    for (int tile = 0; tile < L::kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sum = acc[tile][e][i] * (i % 2 == 0 ? unit.x : unit.y);
        total[tile][e][i] = first ? sum : total[tile][e][i] + sum;
        acc[tile][e][i] = 0.0F;
      }
    }
  }
}

template <class L>
__device__ inline void write(const FewProductParams& p, const Work& work, const Place<L>& place,
                             uint32_t y_rows, const Sums<L>& total) {
  constexpr int kHalf = L::kTiles / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = p.swiglu != 0 ? p.weights.n / 2 : p.weights.n;
  float* const y = p.y + work.leaf * p.leaf_stride + lane / 4;
#pragma unroll
  for (int tile = 0; tile < L::kTiles; ++tile) {
    const int at = tile_at<kTilesHere>(p, work.part, place.slot(tile));
    if (at < 0 || (p.swiglu != 0 && tile >= kHalf)) continue;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = read_int(y_rows + (place.row + 8 * e + lane % 4 * 2 + i) * 4);
        if (row < 0) continue;
        float values[2] = {total[tile][e][i], total[tile][e][2 + i]};
        if (tile < kHalf && p.swiglu != 0) {
          values[0] = swiglu(values[0], total[tile % kHalf + kHalf][e][i]);
          values[1] = swiglu(values[1], total[tile % kHalf + kHalf][e][2 + i]);
        }
        float* const to = y + int64_t{row} * p.ldy + at * kTile;
        if (at * kTile + lane / 4 < columns) to[0] = values[0];
        if (at * kTile + lane / 4 + 8 < columns) to[8] = values[1];
      }
    }
  }
}

template <class L>
__global__ void __launch_bounds__(kThreads, 1) mma_kernel(FewProductParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t begin = shared_begin(memory);
  after_earlier_kernels();
  const int parts = mma_parts(p.weights, p.swiglu);
  const int count = slots_of(p) * parts;
  const int thread = static_cast<int>(threadIdx.x);
  const int per_leaf = p.weights.groups() / p.weights.leaves;
  const Place<L> place;
  Fetch<L> fetch;
  fetch.index = static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x);
#pragma unroll 1
  for (int stage = 0; stage < L::kStages - 1; ++stage) {
    fetch.next(p, begin + stage * L::kStage, count, parts);
    commit_copies();
  }
  uint32_t stage = begin, before = begin + (L::kStages - 1) * L::kStage;
  uint32_t y_rows = begin + L::kYRows;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < count; index += static_cast<int>(gridDim.x)) {
    const Work work = work_at<L::kRows>(p, index, parts);
    int id = -1;
    if (thread < work.count) {
      id = static_cast<int>(y_row(p, work, thread));
      if (p.unfit != nullptr && work.part == 0 && work.leaf == 0) {
        const int64_t row = x_row(p, work, thread);
        if (p.unfit[row] != 0) p.failed[row] = 1;
      }
    }
    const bool busy = place.row < work.count;
    Sums<L> acc = {}, total;
    int left = per_leaf;
    bool first = true;
#pragma unroll 1
    for (int g = work.leaves * per_leaf; g > 0; --g) {
      wait_for_copies<L::kStages - 2>();
      __syncthreads();
      fetch.next(p, before, count, parts);
      commit_copies();
      if (busy) extend<L>(acc, stage, place);
      if (--left == 0) {
        if (busy) end_leaf<L>(acc, stage, place, first, total);
        first = false;
        left = per_leaf;
      }
      before = stage;
      stage = stage == begin + (L::kStages - 1) * L::kStage ? begin : stage + L::kStage;
    }
    if (thread < L::kRows) write_int(y_rows + thread * 4, id);
    __syncthreads();
    if (busy) write<L>(p, work, place, y_rows, total);
    y_rows = 2 * (begin + L::kYRows) + L::kRows * 4 - y_rows;
  }
}

template <class L>
void launch(Launcher& launcher, const FewProductParams& p, int processors) {
  const int64_t most =
      int64_t{p.slots} * mma_parts(p.weights, p.swiglu) * (p.leaf_stride != 0 ? p.weights.leaves : 1);
  launcher.add(mma_kernel<L>, dim3(static_cast<unsigned>(most < processors ? most : processors)),
               dim3(kThreads), p, L::kBytes);
}

}  // namespace

void product_mma(Launcher& launcher, const FewProductParams& params, int together, int processors) {
  FewProductParams p = params;
  if (p.items == nullptr) p.slots = (p.rows + together - 1) / together;
  if (p.weights.planes == 2) {
    launch<Layout<2, kMmaFewRows>>(launcher, p, processors);
  } else if (together == kMmaFewRows) {
    launch<Layout<1, kMmaFewRows>>(launcher, p, processors);
  } else {
    launch<Layout<1, kMmaRows>>(launcher, p, processors);
  }
}

}  // namespace tercet::cuda
