#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/mma_block.cuh"
#include "backend/cuda/kernels/product_mma.h"

namespace tercet::cuda {
namespace {

/// Shared memory, in bytes: stages, each of the rows, the weights, their scales, the rows' sums and leaf
/// units; then y's rows, of two pieces of work.
template <int kPlanesOf, int kRowsOf>
struct Layout {
  static constexpr int kPlanes = kPlanesOf, kRows = kRowsOf, kTilesHere = kMmaBlockTiles;
  static constexpr int kAcross = kRows / kWarpRows;                // warps that share tiles
  static constexpr int kTiles = kTilesHere * kAcross / kMmaWarps;  // of a warp
  static constexpr int kTilesCopied = kTilesHere / kMmaWarps;      // by a thread
  static constexpr int kRowPieces = kRows * 8 / kMmaThreads;       // likewise
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
      const int tile = max(tile_at<L::kTilesHere>(p, work.part, thread / 32 + kMmaWarps * i), 0);
      weights[i] = static_cast<uint32_t>(tile * groups) * (L::kPlanes * kBlockBytes) + thread % 32 * 16;
    }
    const int tile = max(tile_at<L::kTilesHere>(p, work.part, min(thread / 4, L::kTilesHere - 1)), 0);
    scales = p.weights.scales + work.expert * p.scales_stride + int64_t{tile} * groups * kGroupScales +
             thread % 4 * 16;
#pragma unroll
    for (int i = 0; i < L::kRowPieces; ++i) {
      const int64_t row = x_row(p, work, min(thread / 8 + kMmaThreads / 8 * i, work.count - 1));
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
        copy_async(to + (kMmaWarps * i * L::kPlanes + plane) * kBlockBytes,
                   values + (weights[i] + at + plane * kBlockBytes));
      }
    }
    const auto* const halves = reinterpret_cast<const uint8_t*>(p.x.halves);
#pragma unroll
    for (int i = 0; i < L::kRowPieces; ++i) {
      copy_async(stage + swizzled(thread / 8, thread % 8) + i * kMmaThreads * 16,
                 halves + (rows[i] + static_cast<uint32_t>(g) * 128));
    }
    if (thread < L::kTilesHere * 4) copy_async(stage + L::kScales + thread * 16, scales + g * kGroupScales);
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

/// One link of rule 2's chains, in units of the leaf.
template <class L>
__device__ inline void extend_all(Sums<L>& acc, uint32_t stage, const Place<L>& place) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t b[kEights][2][4];
  float2 sums[kEights];
  load_rows(stage, stage + L::kSums, place, b, sums);
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
__device__ inline void add_leaf(Sums<L>& acc, uint32_t stage, const Place<L>& place, bool first,
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

template <int kPlanes, int kRows>
struct Pieces : Layout<kPlanes, kRows> {
  using Fetch = cuda::Fetch<Layout<kPlanes, kRows>>;
  static __device__ void extend(Sums<Pieces>& acc, uint32_t stage, const Place<Pieces>& place) {
    extend_all<Pieces>(acc, stage, place);
  }
  static __device__ void end_leaf(Sums<Pieces>& acc, uint32_t stage, const Place<Pieces>& place, bool first,
                                  Sums<Pieces>& total) {
    add_leaf<Pieces>(acc, stage, place, first, total);
  }
};

template <class L>
__global__ void __launch_bounds__(kMmaThreads, 1) mma_kernel(FewProductParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t begin = shared_begin(memory);
  after_earlier_kernels();
  take_pieces<L>(p, begin);
}

template <class L>
void launch(Launcher& launcher, const FewProductParams& p, int processors) {
  launcher.add(mma_kernel<L>, dim3(blocks_for_pieces<L>(p, processors)), dim3(kMmaThreads), p, L::kBytes);
}

}  // namespace

void product_mma(Launcher& launcher, const FewProductParams& params, int together, int processors) {
  FewProductParams p = params;
  if (p.items == nullptr) p.slots = (p.rows + together - 1) / together;
  if (p.weights.planes == 2) {
    launch<Pieces<2, kMmaFewRows>>(launcher, p, processors);
  } else if (together == kMmaFewRows) {
    launch<Pieces<1, kMmaFewRows>>(launcher, p, processors);
  } else {
    launch<Pieces<1, kMmaRows>>(launcher, p, processors);
  }
}

}  // namespace tercet::cuda
