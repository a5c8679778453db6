#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/product_batch.h"
#include "backend/cuda/kernels/shared.cuh"

namespace tercet::cuda {
namespace {

// A block has an item's pairs, whose rows lie in shared memory, and two tiles of outputs a warp.

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTiles = 2;  // of a warp; with SwiGLU one of gate, one of up

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
__device__ inline void multiply(Asked<kPlanes>& asked, const Tiles& tiles, const Weights& w, const Held& held,
                                Sums<kEights>& total) {
  constexpr int kDeep = kAhead<kPlanes>;
  const int groups = w.groups();
  const int per_leaf = groups / w.leaves;
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
__device__ inline Held hold_rows(const FewProductParams& p, const PairItem& item, uint32_t begin, int room) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = p.weights.groups();
  const int leaves = p.weights.leaves;
  Held held;
  held.row_bytes = static_cast<uint32_t>(groups) * 128 + kBatchRowPad;
  held.rows = begin + kBatchIdBytes;
  held.sums = held.rows + room * held.row_bytes;
  held.units = held.sums + groups * room * 4;
#pragma unroll 1
  for (int i = warp; i < item.count; i += kWarps) {
    const int pair = p.sorted[item.first + i];
    const int64_t row = pair / p.x_div;
    const uint16_t* const from = p.x.halves + row * p.weights.k;
    const uint32_t to = held.rows + static_cast<uint32_t>(i) * held.row_bytes;
    const float* const sums = p.x.sums + row * groups;
    const float* const units = p.x.leaf_units + row * leaves;
    for (int piece = lane; piece < groups * 8; piece += 32) copy_async(to + piece * 16, from + piece * 8);
    for (int g = lane; g < groups; g += 32) copy_word_async(held.sums + (g * room + i) * 4, sums + g);
    if (lane < leaves) copy_word_async(held.units + (lane * room + i) * 4, units + lane);
    if (lane > 0) continue;
    write_int(begin + i * 4, pair);
    if (p.unfit != nullptr && blockIdx.x == 0 && p.unfit[row] != 0) p.failed[row] = 1;
  }
  commit_copies();
  wait_for_copies<0>();
  return held;
}

/// A warp's first tile; with SwiGLU the other is one of up.
__device__ inline int tile_of(const FewProductParams& p) {
  const int index = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  return p.swiglu != 0 ? index : index * kTiles;
}

__device__ inline Tiles tiles_of(const FewProductParams& p, int64_t expert) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  const int step = p.swiglu != 0 ? tiles / 2 : 1;
  Tiles out;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int tile = min(tile_of(p) + i * step, tiles - 1);
    const uint8_t* const values = tile_values(p.weights, tile) + expert * p.values_stride;
    const uint8_t* const scales = tile_scales(p.weights, tile) + expert * p.scales_stride;
    out.values[i] = reinterpret_cast<const uint4*>(values) + lane;
    out.scales[i] = reinterpret_cast<const uint2*>(scales) + lane / 4;
  }
  return out;
}

template <int kEights>
__device__ inline void write(const FewProductParams& p, int count, uint32_t ids, const Sums<kEights>& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = p.swiglu != 0 ? p.weights.n / 2 : p.weights.n;
  const int first = tile_of(p) * kTile + lane / 4;
#pragma unroll
  for (int e = 0; e < kEights; ++e) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * e + lane % 4 * 2 + i % 2;
      const int n = first + i / 2 * 8;
      if (row >= count) continue;
      float* const to = p.y + int64_t{read_int(ids + row * 4)} * p.ldy;
      if (p.swiglu != 0) {
        if (n < columns) to[n] = swiglu(total[0][e][i], total[1][e][i]);
      } else {
        if (n < columns) to[n] = total[0][e][i];
        if (n + kTile < columns) to[n + kTile] = total[1][e][i];
      }
    }
  }
}

template <int kPlanes, int kEights>
__device__ inline void multiply_pairs(const FewProductParams& p, const PairItem& item, uint32_t begin,
                                      Asked<kPlanes>& asked, const Tiles& tiles) {
  const Held held = hold_rows(p, item, begin, kEights * 8);
  __syncthreads();
  Sums<kEights> total;
  multiply<kPlanes, kEights>(asked, tiles, p.weights, held, total);
  write<kEights>(p, item.count, begin, total);
}

/// Blocks: parts of the outputs, items.
template <int kPlanes>
__global__ void __launch_bounds__(kThreads, 2) batch_kernel(FewProductParams p) {
  after_earlier_kernels();
  extern __shared__ __align__(16) uint8_t memory[];
  const uint32_t begin = shared_address(memory);
  const int slot = static_cast<int>(blockIdx.y);
  const PairItem item = p.items[slot];
  if (slot >= p.ends[kWidths - 1]) return;
  const Tiles tiles = tiles_of(p, item.expert);
  Asked<kPlanes> asked;
#pragma unroll
  for (int i = 0; i < kAhead<kPlanes>; ++i) {
    if (i < p.weights.groups()) ask(asked, i, tiles, i);
  }
  if (item.count <= 8) {
    multiply_pairs<kPlanes, 1>(p, item, begin, asked, tiles);
  } else {
    multiply_pairs<kPlanes, 2>(p, item, begin, asked, tiles);
  }
}

}  // namespace

void product_batch(Launcher& launcher, const FewProductParams& p, int together) {
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  const int parts = (tiles + kWarps * kTiles - 1) / (kWarps * kTiles);
  launcher.add(p.weights.planes == 2 ? batch_kernel<2> : batch_kernel<1>,
               dim3(static_cast<unsigned>(parts), static_cast<unsigned>(p.slots)), dim3(kThreads), p,
               batch_shared(p.weights, together));
}

}  // namespace tercet::cuda
