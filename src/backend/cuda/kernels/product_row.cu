#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/product_row.h"

namespace tercet::cuda {
namespace {

// As in rows_few.cu, loops stay loops: small kernels wait for their instructions more than for their data.

/// By the calling warp.
__device__ inline void copy_all(uint8_t* shared, const uint8_t* global, int bytes) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32 * 16; i < bytes; i += 32 * 16)
    copy_async(shared_address(shared + i), global + i);
}

/// Asks for groups [first, first + groups) of a tile.
__device__ inline void ask_for_leaf(uint8_t* shared, const Weights& w, int tile, int first, int groups) {
  const LeafBytes bytes(w, groups);
  copy_all(shared, tile_values(w, tile) + int64_t{first} * w.planes * kBlockBytes, bytes.values);
  copy_all(shared + bytes.values, tile_scales(w, tile) + int64_t{first} * kGroupScales, bytes.scales);
}

/// By the whole block.
__device__ inline void ask_for_row(uint8_t* shared, const Rounded& x, int64_t row, int k) {
  const int pieces = k / 16;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < 2 * pieces; i += static_cast<int>(blockDim.x)) {
    const int plane = i / pieces;
    copy_async(shared_address(shared + plane * (k + kPlanePad) + i % pieces * 16),
               x.planes + (2 * row + plane) * k + i % pieces * 16);
  }
  const UnitSum* units = x.units + row * (k / kBlock);
  auto* held = reinterpret_cast<UnitSum*>(shared + 2 * (k + kPlanePad));
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < k / kBlock; i += static_cast<int>(blockDim.x)) {
    copy_pair_async(shared_address(held + i), units + i);
  }
}

/// The chains of a leaf whose bytes lie in `leaf`: outputs g and g + 8, token t of up to four rows.
template <int kPlanes>
__device__ void chain(const uint8_t* leaf, const uint8_t* rows, int row_count, int k, int first, int groups,
                      float (&acc)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const uint8_t* column = rows + g / 2 * row_bytes(k) + g % 2 * (k + kPlanePad) + 16 * t;
  const auto* units = reinterpret_cast<const UnitSum*>(rows + t * row_bytes(k) + 2 * (k + kPlanePad));
  const uint8_t* scales = leaf + groups * kPlanes * kBlockBytes + g * 8;
  acc[0] = acc[1] = 0.0F;
#pragma unroll 2
  for (int i = 0; i < groups; ++i) {
    uint4 w[kPlanes];
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      w[plane] = *reinterpret_cast<const uint4*>(leaf + (i * kPlanes + plane) * kBlockBytes + lane * 16);
    }
    uint4 x = {0, 0, 0, 0};
    if (g / 2 < row_count) x = *reinterpret_cast<const uint4*>(column + (first + i) * kBlock);
    UnitSum u = {0.0F, 0.0F};
    if (t < row_count) u = units[first + i];
    extend<kPlanes>(acc, w, *reinterpret_cast<const uint2*>(scales + i * kGroupScales), x, u);
  }
}

/// A block of (leaves · tiles) warps: warp = tile · leaves + leaf. With SwiGLU the tiles are, in turn, of
/// gate and of up. Shared memory: a leaf each warp, the rows, the leaves' sums.
template <int kPlanes>
__global__ void row_kernel(FewProductParams p) {
  extern __shared__ __align__(16) uint8_t shared[];
  Weights w = p.weights;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int tiles_here = warps / w.leaves;
  const int tiles = (w.n + kTile - 1) / kTile;
  const int number = static_cast<int>(blockIdx.x) * tiles_here + warp / w.leaves;
  const int tile = p.swiglu != 0 ? number / 2 + number % 2 * (tiles / 2) : number;
  const int groups = w.groups() / w.leaves;
  const int first_group = warp % w.leaves * groups;
  const LeafBytes bytes(w, groups);
  uint8_t* const leaf = shared + warp * bytes.all();
  uint8_t* const rows = shared + warps * bytes.all();
  const int slot = static_cast<int>(blockIdx.y);
  const bool expert = p.which != nullptr;
  const int row_count = expert ? 1 : p.rows;
  if (!expert && number < tiles) ask_for_leaf(leaf, w, tile, first_group, groups);
  after_earlier_kernels();
  if (expert) {
    const int64_t e = p.which[slot];
    w.values += e * p.values_stride;
    w.scales += e * p.scales_stride;
    if (number < tiles) ask_for_leaf(leaf, w, tile, first_group, groups);
  }
#pragma unroll 1
  for (int r = 0; r < row_count; ++r) {
    const int64_t row = expert ? slot / p.x_div : p.ids != nullptr ? p.ids[r] : r;
    ask_for_row(rows + r * row_bytes(w.k), p.x, row, w.k);
    if (p.unfit != nullptr && blockIdx.x == 0 && threadIdx.x == 0 && p.unfit[row] != 0) p.failed[row] = 1;
  }
  wait_for_all_copies();
  __syncthreads();
  auto* const sums =
      reinterpret_cast<float*>(rows + row_count * row_bytes(w.k));  // [warps][16 outputs][4 rows]
  if (number < tiles) {
    float acc[2];
    chain<kPlanes>(leaf, rows, row_count, w.k, first_group, groups, acc);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    sums[(warp * kTile + lane / 4) * kTokens + lane % 4] = acc[0];
    sums[(warp * kTile + lane / 4 + 8) * kTokens + lane % 4] = acc[1];
  }
  __syncthreads();
  const auto result = [&](int tile_here, int output, int row) {
    const float* from = sums + (tile_here * w.leaves * kTile + output) * kTokens + row;
    float sum = from[0];
#pragma unroll 1
    for (int l = 1; l < w.leaves; ++l) sum = sum + from[l * kTile * kTokens];
    return sum;
  };
  const int step = p.swiglu != 0 ? 2 : 1;
  const int outputs = tiles_here / step * kTile;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < outputs * row_count; i += static_cast<int>(blockDim.x)) {
    const int row = i / outputs;
    const int here = i % outputs / kTile * step;
    const int first = static_cast<int>(blockIdx.x) * tiles_here + here;
    const int n = first / step * kTile + i % kTile;
    if (first >= tiles || n >= w.n / step) continue;
    const float value = result(here, i % kTile, row);
    p.y[(slot + row) * p.ldy + n] = p.swiglu != 0 ? swiglu(value, result(here + 1, i % kTile, row)) : value;
  }
}

/// A warp an expert of the row, leaf after leaf.
template <int kPlanes>
__global__ void __launch_bounds__(kFewChosen * 32) down_kernel(FewDownParams p) {
  after_earlier_kernels();
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float results[kFewChosen][kTile];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  Weights w = p.weights;
  const int per_leaf = w.groups() / w.leaves;
  const LeafBytes bytes(w, per_leaf);
  uint8_t* const leaves = shared + warp * w.leaves * bytes.all();
  if (warp < p.chosen) {
    const int64_t e = p.experts[row * p.chosen + warp];
    w.values += e * p.values_stride;
    w.scales += e * p.scales_stride;
#pragma unroll 1
    for (int leaf = 0; leaf < w.leaves; ++leaf) {
      ask_for_leaf(leaves + leaf * bytes.all(), w, tile, leaf * per_leaf, per_leaf);
    }
  }
  uint8_t* const rows = shared + p.chosen * w.leaves * bytes.all();
#pragma unroll 1
  for (int j = 0; j < p.chosen; ++j) ask_for_row(rows + j * row_bytes(w.k), p.x, row * p.chosen + j, w.k);
  wait_for_all_copies();
  __syncthreads();
  if (warp < p.chosen) {
    float sum[2];
#pragma unroll 1
    for (int leaf = 0; leaf < w.leaves; ++leaf) {
      float acc[2];
      chain<kPlanes>(leaves + leaf * bytes.all(), rows + warp * row_bytes(w.k), 1, w.k, leaf * per_leaf,
                     per_leaf, acc);
      sum[0] = leaf == 0 ? acc[0] : sum[0] + acc[0];
      sum[1] = leaf == 0 ? acc[1] : sum[1] + acc[1];
    }
    if (lane % 4 == 0) {
      results[warp][lane / 4] = sum[0];
      results[warp][lane / 4 + 8] = sum[1];
    }
  }
  __syncthreads();
  const int n = tile * kTile + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kTile || n >= p.weights.n) return;
  float z = 0.0F;
#pragma unroll 1
  for (int j = 0; j < p.chosen; ++j)
    z = fma_(p.route_weights[row * p.chosen + j], results[j][threadIdx.x], z);
  const int64_t at = row * p.weights.n + n;
  p.z[at] = p.shared == nullptr ? z : z + p.shared[at];
}

}  // namespace

void product_row(Launcher& launcher, const FewProductParams& p) {
  const bool swiglu = p.swiglu != 0;
  const int tiles_here = row_tiles(p.weights, swiglu);
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  const dim3 grid(static_cast<unsigned>((tiles + tiles_here - 1) / tiles_here),
                  static_cast<unsigned>(p.which != nullptr ? p.slots : 1));
  launcher.add(p.weights.planes == 2 ? row_kernel<2> : row_kernel<1>, grid,
               dim3(static_cast<unsigned>(tiles_here * p.weights.leaves * 32)), p,
               row_shared(p.weights, p.which != nullptr ? 1 : p.rows, swiglu));
}

void down_few(Launcher& launcher, const FewDownParams& p) {
  const dim3 grid(static_cast<unsigned>((p.weights.n + kTile - 1) / kTile), static_cast<unsigned>(p.rows));
  launcher.add(p.weights.planes == 2 ? down_kernel<2> : down_kernel<1>, grid, dim3(kFewChosen * 32), p,
               down_shared(p.weights, p.chosen));
}

}  // namespace tercet::cuda
