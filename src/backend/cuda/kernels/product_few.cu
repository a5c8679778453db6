#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {
namespace {

constexpr int kManyTiles = 8 * 264;  // of all chunks: two blocks for each multiprocessor of an H200
constexpr int kAhead = 4;            // groups whose bytes are asked for before the first is used

template <int kQuads>
struct Columns {
  const uint4* planes[kQuads];   // this lane's column: a plane of a row, from its first 16 numbers on
  const UnitSum* units[kQuads];  // of the row whose sums this lane holds
};

/// This lane's columns: row(i) is x's row of token i, or negative where there is none.
template <int kQuads, class RowOf>
__device__ Columns<kQuads> columns_of(const Rounded& x, int k, RowOf row) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  Columns<kQuads> c;
  for (int q = 0; q < kQuads; ++q) {
    const int64_t mine = row(q * kTokens + g / 2);
    const int64_t held = row(q * kTokens + t);
    c.planes[q] =
        mine < 0 ? nullptr : reinterpret_cast<const uint4*>(x.planes + (2 * mine + g % 2) * k + 16 * t);
    c.units[q] = held < 0 ? nullptr : x.units + held * (k / kBlock);
  }
  return c;
}

/// A leaf's chains (rules 2 and 3) of a tile's outputs g and g + 8 and, of each quad, token t.
template <int kPlanes, int kQuads>
__device__ void chain(const uint8_t* values, const uint8_t* scales, int begin, int end,
                      const Columns<kQuads>& x, float (&acc)[kQuads][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* w = reinterpret_cast<const uint4*>(values) + lane;
  const auto* s = reinterpret_cast<const uint2*>(scales) + lane / 4;
  for (int q = 0; q < kQuads; ++q) acc[q][0] = acc[q][1] = 0.0F;
  for (int first = begin; first < end; first += kAhead) {
    uint4 weights[kAhead][kPlanes];
    uint2 pairs[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int g = min(first + i, end - 1);
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        weights[i][plane] = __ldcs(w + (g * kPlanes + plane) * 32);
      pairs[i] = __ldcs(s + g * 8);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int g = first + i;
      if (g >= end) break;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        uint4 numbers = {0, 0, 0, 0};
        if (x.planes[q] != nullptr) numbers = x.planes[q][g * 4];
        UnitSum u = {0.0F, 0.0F};
        if (x.units[q] != nullptr) u = x.units[q][g];
        extend<kPlanes>(acc[q], weights[i], pairs[i], numbers, u);
      }
    }
  }
}

/// The rows of a block: pairs or rows first … first + count.
struct RowSource {
  int first, count;
};

/// Moves `w` to the expert's weights.
__device__ inline RowSource row_source(const FewProductParams& p, Weights& w, int slot) {
  RowSource out{slot * kFewRows, 0};
  int64_t expert = 0;
  if (p.items != nullptr) {
    if (slot >= p.ends[kWidths - 1]) return out;
    const PairItem item = p.items[slot];
    out = {item.first, item.count};
    expert = item.expert;
  } else if (p.which != nullptr) {
    out = {slot, 1};
    expert = p.which[slot];
  } else {
    out.count = min(kFewRows, p.rows - out.first);
  }
  w.values += expert * p.values_stride;
  w.scales += expert * p.scales_stride;
  return out;
}

__device__ inline int64_t y_row(const FewProductParams& p, const RowSource& source, int i) {
  return p.items != nullptr ? p.sorted[source.first + i] : source.first + i;
}

__device__ inline int64_t x_row(const FewProductParams& p, const RowSource& source, int i) {
  if (p.items != nullptr || p.which != nullptr) return y_row(p, source, i) / p.x_div;
  return p.ids != nullptr ? p.ids[source.first + i] : source.first + i;
}

/// Which part of the outputs, and which rows, a block has. Without experts all chunks of rows come to a
/// tile's weights at the same time.
struct Share {
  int outputs, slot;
};

__device__ inline Share share_of(const FewProductParams& p) {
  const int index = static_cast<int>(blockIdx.x);
  if (p.which != nullptr || p.items != nullptr) return {index, static_cast<int>(blockIdx.y)};
  return {index / p.slots, index % p.slots};
}

/// Which tile and leaf a warp works at.
struct Place {
  int number;  // of the tile, as blocks count
  int tile;
  int leaf;
};

__device__ inline Place place_of(const FewProductParams& p) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int tiles_here = static_cast<int>(blockDim.x) / 32 / p.together;
  const int number = share_of(p).outputs * tiles_here + warp / p.together;
  const int half = (p.weights.n + kTile - 1) / kTile / 2;
  return {number, p.swiglu != 0 ? number / 2 + number % 2 * half : number, warp % p.together};
}

/// Weights depend on no earlier kernel: their way into the L2 cache begins before those have ended.
__device__ inline void ask_for_weights(const FewProductParams& p) {
  const Place at = place_of(p);
  if (at.number >= (p.weights.n + kTile - 1) / kTile) return;
  const int per_leaf = p.weights.groups() / p.weights.leaves;
  const int64_t bytes = int64_t{per_leaf} * p.weights.planes * kBlockBytes;
  const uint8_t* from = tile_values(p.weights, at.tile) + at.leaf * bytes;
  for (int64_t i = static_cast<int>(threadIdx.x) % 32 * 128; i < bytes; i += 32 * 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
  }
}

/// A block of (together · tiles) warps: warp = tile · together + leaf. A warp that has all leaves takes them
/// one after another. With SwiGLU the tiles are, in turn, of gate and of up.
template <int kPlanes, int kQuads>
__global__ void __launch_bounds__(2 * kMaxLeaves * 32) few_kernel(FewProductParams p) {
  if (p.which == nullptr && p.items == nullptr) ask_for_weights(p);
  after_earlier_kernels();
  extern __shared__ float leaf_sums[];  // [warps][16 outputs][tokens]
  constexpr int kHeld = kQuads * kTokens;
  Weights w = p.weights;
  const RowSource source = row_source(p, w, share_of(p).slot);
  if (source.count == 0) return;
  if (p.unfit != nullptr && share_of(p).outputs == 0 && static_cast<int>(threadIdx.x) < source.count) {
    const int64_t row = x_row(p, source, static_cast<int>(threadIdx.x));
    if (p.unfit[row] != 0) p.failed[row] = 1;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int tiles_here = static_cast<int>(blockDim.x) / 32 / p.together;
  const int tiles = (w.n + kTile - 1) / kTile;
  const Place at = place_of(p);
  if (at.number < tiles) {
    const auto columns = columns_of<kQuads>(
        p.x, w.k, [&](int i) -> int64_t { return i >= source.count ? -1 : x_row(p, source, i); });
    const int per_leaf = w.groups() / w.leaves;
    float sum[kQuads][2];
#pragma unroll 1
    for (int leaf = at.leaf; leaf < w.leaves; leaf += p.together) {
      float acc[kQuads][2];
      chain<kPlanes, kQuads>(tile_values(w, at.tile), tile_scales(w, at.tile), leaf * per_leaf,
                             (leaf + 1) * per_leaf, columns, acc);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        sum[q][0] = leaf == at.leaf ? acc[q][0] : sum[q][0] + acc[q][0];
        sum[q][1] = leaf == at.leaf ? acc[q][1] : sum[q][1] + acc[q][1];
      }
    }
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
    for (int q = 0; q < kQuads; ++q) {
      leaf_sums[(warp * kTile + g) * kHeld + q * kTokens + t] = sum[q][0];
      leaf_sums[(warp * kTile + g + 8) * kHeld + q * kTokens + t] = sum[q][1];
    }
  }
  __syncthreads();
  const auto result = [&](int tile_here, int output, int row) {
    const float* sums = leaf_sums + (tile_here * p.together * kTile + output) * kHeld + row;
    float sum = sums[0];
    for (int l = 1; l < p.together; ++l) sum = sum + sums[l * kTile * kHeld];
    return sum;
  };
  const int step = p.swiglu != 0 ? 2 : 1;
  const int outputs = tiles_here / step * kTile;
  for (int i = static_cast<int>(threadIdx.x); i < outputs * source.count; i += static_cast<int>(blockDim.x)) {
    const int row = i / outputs;
    const int here = i % outputs / kTile * step;
    const int output = i % kTile;
    const int first = share_of(p).outputs * tiles_here + here;
    if (first >= tiles) continue;
    const int n = first / step * kTile + output;
    if (n >= w.n / step) continue;
    const float value = result(here, output, row);
    p.y[y_row(p, source, row) * p.ldy + n] =
        p.swiglu != 0 ? swiglu(value, result(here + 1, output, row)) : value;
  }
}

template <int kPlanes>
void launch(Launcher& launcher, const FewProductParams& p, dim3 grid, dim3 block) {
  const int most = p.items != nullptr ? kFewRows : p.which != nullptr ? 1 : min(p.rows, kFewRows);
  const int quads = (most + kTokens - 1) / kTokens;
  const auto add = [&](void (*kernel)(FewProductParams), int held) {
    launcher.add(kernel, grid, block, p, block.x / 32 * kTile * held * kTokens * sizeof(float));
  };
  if (quads <= 1) {
    add(few_kernel<kPlanes, 1>, 1);
  } else if (quads <= 2) {
    add(few_kernel<kPlanes, 2>, 2);
  } else {
    add(few_kernel<kPlanes, 4>, 4);
  }
}

}  // namespace

void product_few(Launcher& launcher, const FewProductParams& params) {
  FewProductParams p = params;
  const bool experts = p.which != nullptr || p.items != nullptr;
  if (!experts) p.slots = (p.rows + kFewRows - 1) / kFewRows;
  const int least = p.swiglu != 0 ? 2 : 1;
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  // Warps that have the same leaf share their rows' way from memory; leaves side by side fill a device with
  // few tiles.
  p.together = int64_t{tiles} * p.slots >= kManyTiles ? 1 : p.weights.leaves;
  const int tiles_here = max(least, 8 / p.together);
  const auto parts = static_cast<unsigned>((tiles + tiles_here - 1) / tiles_here);
  const auto slots = static_cast<unsigned>(p.slots);
  const dim3 grid = experts ? dim3(parts, slots) : dim3(parts * slots);
  const dim3 block(static_cast<unsigned>(tiles_here * p.together * 32));
  if (p.weights.planes == 2) {
    launch<2>(launcher, p, grid, block);
  } else {
    launch<1>(launcher, p, grid, block);
  }
}

}  // namespace tercet::cuda
