#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/product_batch.h"
#include "backend/cuda/kernels/shared.cuh"

namespace tercet::cuda {
namespace {

// A block has an item's pairs, whose rows lie in shared memory, and two tiles of outputs a warp.

constexpr int kLeafWarps = 4;  // where blocks have a leaf each
constexpr int kTiles = 2;      // of a warp; with SwiGLU one of gate, one of up

/// Groups whose weights are on their way to a warp's registers.
template <int kPlanes>
constexpr int kAhead = kPlanes == 1 ? 3 : 2;

/// This lane's part of group 0 of the tiles.
struct Tiles {
  const uint4* values[kTiles];
  const uint2* scales[kTiles];
};

template <int kPlanes>
struct Asked {
  uint4 values[kAhead<kPlanes>][kTiles][kPlanes];
  uint2 scales[kAhead<kPlanes>][kTiles];
};

template <int kPlanes>
__device__ inline void ask(Asked<kPlanes>& asked, int slot, const Tiles& tiles, int g) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      asked.values[slot][tile][plane] = __ldcs(tiles.values[tile] + (g * kPlanes + plane) * 32);
    }
    asked.scales[slot][tile] = __ldcs(tiles.scales[tile] + g * 8);
  }
}

/// Groups first … first + count, which are leaves leaf … leaf + leaves.
struct Range {
  int first, count, leaf, leaves;
};

/// Rows in shared memory, behind y's rows (batch_shared()): addresses, `row_bytes` being the distance of
/// rows.
struct Held {
  uint32_t rows, row_bytes;
  uint32_t sums;   // [groups][rows]
  uint32_t units;  // [leaves][rows]
};

/// Sums of a lane: of outputs lane/4 and lane/4 + 8 of a tile with rows 8e + lane%4·2 and the next.
template <int kEights>
using Sums = float[kTiles][kEights][4];

/// One link of rule 2's chains, in units of the leaf.
template <int kPlanes, int kEights>
__device__ inline void extend(Sums<kEights>& acc, const uint4 (&values)[kTiles][kPlanes],
                              const uint2 (&scales)[kTiles], const Held& held, int g) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t rows =
      held.rows + static_cast<uint32_t>(lane % 8) * held.row_bytes + lane / 8 * 16 + g * 128;
  const uint32_t sums = held.sums + (g * kEights * 8 + lane % 4 * 2) * 4;
  uint32_t b[kEights][2][4];
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    load_matrices(b[e][0], rows + e * 8 * held.row_bytes);
    load_matrices(b[e][1], rows + e * 8 * held.row_bytes + 64);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float d[kPlanes][kEights][4] = {};
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      uint32_t a[16];
      unpack(a, values[tile][plane]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          mma_fp16(d[plane][e], a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[e][i / 2][i % 2 * 2],
                   b[e][i / 2][i % 2 * 2 + 1]);
        }
      }
    }
    const float s[2] = {low_half(scales[tile].x), low_half(scales[tile].y)};
    const float bias[2] = {high_half(scales[tile].x), high_half(scales[tile].y)};
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const float2 sum = read_two_floats(sums + e * 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& to = acc[tile][e][i];
        if constexpr (kPlanes == 2) to = fma_(16.0F * s[i / 2], d[0][e][i], to);
        to = fma_(s[i / 2], d[kPlanes - 1][e][i], to);
        to = fma_(bias[i / 2], i % 2 == 0 ? sum.x : sum.y, to);
      }
    }
  }
}

/// A leaf's sums in their own unit, added to those of the leaves before.
template <int kEights>
__device__ inline void end_leaf(Sums<kEights>& acc, uint32_t units, bool first, Sums<kEights>& total) {
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
    const float2 unit = read_two_floats(units + static_cast<int>(threadIdx.x) % 4 * 8 + e * 32);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sum = acc[tile][e][j] * (j % 2 == 0 ? unit.x : unit.y);
        total[tile][e][j] = first ? sum : total[tile][e][j] + sum;
        acc[tile][e][j] = 0.0F;
      }
    }
  }
}

/// The results of a warp's tiles, whose first groups have been asked for.
template <int kPlanes, int kEights>
__device__ inline void multiply(Asked<kPlanes>& asked, const Tiles& tiles, const Range& range,
                                const Held& held, Sums<kEights>& total) {
  constexpr int kDeep = kAhead<kPlanes>;
  const int groups = range.count;
  const int per_leaf = groups / range.leaves;
  Sums<kEights> acc = {};
  uint32_t units = held.units;
  int left = per_leaf;
#pragma unroll 1
  for (int first = 0; first < groups; first += kDeep) {
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
      const int g = first + i;
      if (g >= groups) break;
      extend<kPlanes, kEights>(acc, asked.values[i], asked.scales[i], held, g);
      if (g + kDeep < groups) ask(asked, i, tiles, g + kDeep);
      if (--left > 0) continue;
      end_leaf<kEights>(acc, units, units == held.units, total);
      units += kEights * 32;
      left = per_leaf;
    }
  }
}

/// Copies an item's rows, their sums and leaf units to `begin` and on, `room` rows having place; there when
/// all threads have met.
__device__ inline Held hold_rows(const FewProductParams& p, const PairItem& item, const Range& range,
                                 uint32_t begin, int room) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = range.count;
  Held held;
  held.row_bytes = static_cast<uint32_t>(groups) * 128 + kBatchRowPad;
  held.rows = begin + kBatchIdBytes;
  held.sums = held.rows + room * held.row_bytes;
  held.units = held.sums + groups * room * 4;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / 32; i < item.count; i += static_cast<int>(blockDim.x) / 32) {
    int pair = item.first + i;
    int64_t row = pair;
    if (p.items != nullptr) {
      pair = p.sorted[pair];
      row = item.expert < 0 ? p.first_beside + pair : pair / p.x_div;
    } else if (p.ids != nullptr) {
      row = p.ids[pair];
    }
    const uint16_t* const from = p.x.halves + row * p.weights.k + range.first * kBlock;
    const uint32_t to = held.rows + static_cast<uint32_t>(i) * held.row_bytes;
    const float* const sums = p.x.sums + row * p.weights.groups() + range.first;
    const float* const units = p.x.leaf_units + row * p.weights.leaves + range.leaf;
    for (int piece = lane; piece < groups * 8; piece += 32) copy_async(to + piece * 16, from + piece * 8);
    for (int g = lane; g < groups; g += 32) copy_word_async(held.sums + (g * room + i) * 4, sums + g);
    if (lane < range.leaves) copy_word_async(held.units + (lane * room + i) * 4, units + lane);
    if (lane > 0) continue;
    write_int(begin + i * 4, pair);
    if (p.unfit != nullptr && blockIdx.x == 0 && range.leaf == 0 && p.unfit[row] != 0) p.failed[row] = 1;
  }
  commit_copies();
  wait_for_copies<0>();
  return held;
}

/// A warp's first tile; with SwiGLU the other is one of up.
__device__ inline int tile_of(const FewProductParams& p) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  return p.swiglu != 0 ? index : index * kTiles;
}

template <int kPlanes>
__device__ inline Tiles tiles_of(const FewProductParams& p, int64_t expert, int first_group) {
  const bool beside = expert < 0;
  Weights w = p.weights;
  w.values = beside ? p.values_beside : w.values + expert * p.values_stride;
  w.scales = beside ? p.scales_beside : w.scales + expert * p.scales_stride;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tiles = (w.n + kTile - 1) / kTile;
  const int step = p.swiglu != 0 ? tiles / 2 : 1;
  Tiles out;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int tile = min(tile_of(p) + i * step, tiles - 1);
    out.values[i] = reinterpret_cast<const uint4*>(tile_values(w, tile)) + first_group * kPlanes * 32 + lane;
    out.scales[i] = reinterpret_cast<const uint2*>(tile_scales(w, tile)) + first_group * 8 + lane / 4;
  }
  return out;
}

template <int kEights>
__device__ inline void write(const FewProductParams& p, float* y, const PairItem& item, uint32_t ids,
                             const Sums<kEights>& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = p.swiglu != 0 ? p.weights.n / 2 : p.weights.n;
  const int first = tile_of(p) * kTile + lane / 4;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * e + lane % 4 * 2 + i % 2;
      const int n = first + i / 2 * 8;
      if (row >= item.count) continue;
      float* const to = y + int64_t{read_int(ids + row * 4)} * p.ldy;
      if (p.swiglu != 0) {
        if (n < columns) to[n] = swiglu(total[0][e][i], total[1][e][i]);
      } else {
        if (n < columns) to[n] = total[0][e][i];
        if (n + kTile < columns) to[n + kTile] = total[1][e][i];
      }
    }
  }
}

template <int kPlanes>
__device__ inline void ask_for_first(Asked<kPlanes>& asked, const Tiles& tiles, int groups) {
#pragma unroll
  for (int i = 0; i < kAhead<kPlanes>; ++i) {
    if (i < groups) ask(asked, i, tiles, i);
  }
}

template <int kPlanes, int kEights>
__device__ inline void multiply_pairs(const FewProductParams& p, float* y, const PairItem& item,
                                      const Range& range, uint32_t begin, Asked<kPlanes>& asked,
                                      const Tiles& tiles) {
  const Held held = hold_rows(p, item, range, begin, kEights * 8);
  __syncthreads();
  Sums<kEights> total;
  multiply<kPlanes, kEights>(asked, tiles, range, held, total);
  write<kEights>(p, y, item, begin, total);
}

/// Blocks: parts of the outputs, items.
template <int kPlanes, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, kWarps == 4 ? kBatchBlocks : 2)
    batch_kernel(FewProductParams p) {
  // Later kernels begin when this one's items are there, so that product_batch() of `known` items may read
  // them, and ask for weights, before the rows are there.
  if (p.known == 0) wait_for_earlier_kernels();
  extern __shared__ __align__(16) uint8_t memory[];
  const uint32_t begin = shared_address(memory);
  const int slot = static_cast<int>(blockIdx.y);
  const int* const words = &p.items[slot].expert;
  const PairItem item = {__ldcg(words), __ldcg(words + 1), __ldcg(words + 2)};
  if (slot >= __ldcg(p.ends + kWidths - 1)) return after_earlier_kernels();
  const Range range = {0, p.weights.groups(), 0, p.weights.leaves};
  const Tiles tiles = tiles_of<kPlanes>(p, item.expert, 0);
  Asked<kPlanes> asked;
  ask_for_first(asked, tiles, range.count);
  after_earlier_kernels();
  float* const y = item.expert < 0 ? p.y_beside : p.y;
  multiply_pairs<kPlanes, 1>(p, y, item, range, begin, asked, tiles);
}

/// Blocks: parts of the outputs, rows, leaves.
__global__ void __launch_bounds__(kLeafWarps * 32, 4) leaves_kernel(FewProductParams p) {
  let_later_kernels_begin();
  extern __shared__ __align__(16) uint8_t memory[];
  const uint32_t begin = shared_address(memory);
  const int first = static_cast<int>(blockIdx.y) * kLeafRows;
  const int leaf = static_cast<int>(blockIdx.z);
  const PairItem item = {0, first, min(kLeafRows, p.rows - first)};
  const int per_leaf = p.weights.groups() / p.weights.leaves;
  const Range range = {leaf * per_leaf, per_leaf, leaf, 1};
  const Tiles tiles = tiles_of<1>(p, 0, range.first);
  Asked<1> asked;
  ask_for_first(asked, tiles, range.count);
  wait_for_earlier_kernels();
  float* const y = p.y + leaf * p.leaf_stride;
  if (item.count <= 8) {
    multiply_pairs<1, 1>(p, y, item, range, begin, asked, tiles);
  } else {
    multiply_pairs<1, 2>(p, y, item, range, begin, asked, tiles);
  }
}

}  // namespace

void product_batch(Launcher& launcher, const FewProductParams& p, int warps) {
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  const int parts = (tiles + warps * kTiles - 1) / (warps * kTiles);
  const bool two = p.weights.planes == 2;
  const auto kernel = warps == 4 ? (two ? batch_kernel<2, 4> : batch_kernel<1, 4>)
                                 : (two ? batch_kernel<2, 8> : batch_kernel<1, 8>);
  launcher.add(kernel, dim3(static_cast<unsigned>(parts), static_cast<unsigned>(p.slots)), dim3(warps * 32),
               p, batch_shared(p.weights, kBatchPairs));
}

void product_leaves(Launcher& launcher, const FewProductParams& p) {
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  const int parts = (tiles + kLeafWarps * kTiles - 1) / (kLeafWarps * kTiles);
  launcher.add(leaves_kernel,
               dim3(static_cast<unsigned>(parts), static_cast<unsigned>((p.rows + kLeafRows - 1) / kLeafRows),
                    static_cast<unsigned>(p.weights.leaves)),
               dim3(kLeafWarps * 32), p, leaf_shared(p.weights));
}

}  // namespace tercet::cuda
