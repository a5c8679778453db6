// A block's way through its pieces of work, for products of many rows by mma.sync: groups of them come by
// cp.async, some ahead; a warp has some tiles of outputs and 32 rows, whose sums stay in its registers. With
// SwiGLU half of its tiles are gate's, the others up's.
//
// What differs is the layout L of shared memory: kRows and kTilesHere of a block, kTiles of a warp, kAcross
// warps that share tiles, kStages of kStage bytes each, kYRows where y's rows of two pieces lie; L::Fetch,
// which asks for a stage, L::extend() by a group and L::end_leaf().
#pragma once

#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/pieces.cuh"
#include "backend/cuda/kernels/shared.cuh"

namespace tercet::cuda {

constexpr int kMmaWarps = 8;
constexpr int kMmaThreads = kMmaWarps * 32;
constexpr int kWarpRows = 32;
constexpr int kEights = kWarpRows / 8;

/// Where a warp works in its block: of the tiles `tile` and on and kTilesHere / 2 + `tile` and on, half of
/// its own each; rows `row` and on.
template <class L>
struct Place {
  int tile = static_cast<int>(threadIdx.x) / 32 / L::kAcross * (L::kTiles / 2);
  int row = static_cast<int>(threadIdx.x) / 32 % L::kAcross * kWarpRows;

  /// The slot of the warp's tile i.
  __device__ int slot(int i) const {
    return tile + i % (L::kTiles / 2) + i / (L::kTiles / 2) * (L::kTilesHere / 2);
  }
};

/// Sums of a lane: of outputs lane/4 and lane/4 + 8 of a tile with rows 8e + lane%4·2 and the next.
template <class L>
using Sums = float[L::kTiles][kEights][4];

/// What a warp's rows bring into a group's products: their numbers, as b of four products each, which lie at
/// the stage's beginning as swizzled() has them, and a float of rows lane%4·2 and the next of each eight,
/// which lie from `floats` on.
template <class L>
__device__ inline void load_rows(uint32_t stage, uint32_t floats, const Place<L>& place,
                                 uint32_t (&b)[kEights][2][4], float2 (&of_rows)[kEights]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const uint32_t rows = stage + place.row * 128 + e * 1024;
    load_matrices(b[e][0], rows + swizzled(lane % 8, lane / 8));
    load_matrices(b[e][1], rows + swizzled(lane % 8, 4 + lane / 8));
    of_rows[e] = read_two_floats(floats + (place.row + 8 * e + lane % 4 * 2) * 4);
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
    const int at = tile_at<L::kTilesHere>(p, work.part, place.slot(tile));
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

/// Pieces of work blockIdx.x, blockIdx.x + gridDim.x, …; shared memory lies at `begin`, a multiple of 1,024.
template <class L>
__device__ inline void take_pieces(const FewProductParams& p, uint32_t begin) {
  const int parts = block_parts(p.weights, p.swiglu, L::kTilesHere);
  const int count = slots_of(p) * parts;
  const int thread = static_cast<int>(threadIdx.x);
  const int per_leaf = p.weights.groups() / p.weights.leaves;
  const Place<L> place;
  typename L::Fetch fetch;
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
      if (busy) L::extend(acc, stage, place);
      if (--left == 0) {
        if (busy) L::end_leaf(acc, stage, place, first, total);
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

/// Blocks for them: no more than the device's processors.
template <class L>
unsigned blocks_for_pieces(const FewProductParams& p, int processors) {
  const int64_t most = int64_t{p.slots} * block_parts(p.weights, p.swiglu, L::kTilesHere) *
                       (p.leaf_stride != 0 ? p.weights.leaves : 1);
  return static_cast<unsigned>(most < processors ? most : processors);
}

}  // namespace tercet::cuda
