#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/mma_block.cuh"
#include "backend/cuda/kernels/product_floats.h"
#include "ops/exact_math.h"

namespace tercet::cuda {
namespace {

__device__ inline const uint16_t* float_values(const FewProductParams& p, int64_t expert, int n) {
  return reinterpret_cast<const uint16_t*>(p.weights.values + expert * p.values_stride) +
         int64_t{n} * p.weights.k;
}
/// F of an output's groups.
__device__ inline const int8_t* float_exponents(const FewProductParams& p, int64_t expert, int n) {
  return reinterpret_cast<const int8_t*>(p.weights.scales + expert * p.scales_stride) +
         int64_t{n} * p.weights.groups();
}
__device__ inline float unit_of(int exponent) { return plain_power(exponent - 12); }

/// One link of rule 2's chains for outputs g and g + 8 with rows 2t and 2t + 1.
__device__ inline void extend_four(float (&acc)[4], const float (&d)[4], const float (&v)[2], float2 u) {
  acc[0] = fma_(v[0] * u.x, d[0], acc[0]);
  acc[1] = fma_(v[0] * u.y, d[1], acc[1]);
  acc[2] = fma_(v[1] * u.x, d[2], acc[2]);
  acc[3] = fma_(v[1] * u.y, d[3], acc[3]);
}

// Few rows: a warp has a tile and a leaf, whose weights go straight into registers. The order of a group's
// numbers is free, so a lane takes 16 bytes at a time, of weights as of rows.

constexpr int kFewWarps = 8;
/// Groups whose weights are on their way.
template <int kRowEights>
constexpr int kAhead = kRowEights == 1 ? 4 : 2;

struct Asked {
  uint4 values[2][2];  // of outputs g and g + 8: numbers 8t … 8t + 7 of each half of the group
  int exponents[2];
};

/// Where rows lie: from x.numbers and x.units on, of which few rows and pairs have fewer than 2^32.
template <int kRowEights>
struct FewRows {
  uint32_t numbers[kRowEights];   // of row 8e + lane/4, from 8·(lane%4) on
  uint32_t units[kRowEights][2];  // of rows 8e + lane%4·2 and the next

  __device__ FewRows(const FewProductParams& p, const Work& work, int first_group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto row = [&](int i) { return static_cast<uint32_t>(x_row(p, work, min(i, work.count - 1))); };
#pragma unroll
    for (int e = 0; e < kRowEights; ++e) {
      numbers[e] = row(8 * e + lane / 4) * p.weights.k + first_group * kBlock + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        units[e][i] = row(8 * e + lane % 4 * 2 + i) * p.weights.groups() + first_group;
      }
    }
  }
};

/// A leaf's sums of a tile with all rows.
template <int kRowEights>
__device__ inline void few_leaf(const FewProductParams& p, const Work& work, int tile, int leaf,
                                float (&acc)[kRowEights][4]) {
  constexpr int kDeep = kAhead<kRowEights>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int per_leaf = p.weights.groups() / p.weights.leaves;
  const uint4* values[2];
  const int8_t* exponents[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int n = min(tile * kTile + 8 * i + lane / 4, p.weights.n - 1);
    values[i] =
        reinterpret_cast<const uint4*>(float_values(p, work.expert, n) + leaf * per_leaf * kBlock) + lane % 4;
    exponents[i] = float_exponents(p, work.expert, n) + leaf * per_leaf;
  }
  Asked asked[kDeep];
  const auto ask = [&](Asked& to, int g) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to.values[i][0] = __ldcs(values[i] + g * 8);
      to.values[i][1] = __ldcs(values[i] + g * 8 + 4);
      to.exponents[i] = exponents[i][g];
    }
  };
#pragma unroll
  for (int i = 0; i < kDeep; ++i) {
    if (i < per_leaf) ask(asked[i], i);
  }
  if (p.items == nullptr) wait_for_earlier_kernels();
  const FewRows<kRowEights> rows(p, work, leaf * per_leaf);
#pragma unroll 1
  for (int first = 0; first < per_leaf; first += kDeep) {
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
      const int g = first + i;
      if (g >= per_leaf) break;
      float d[kRowEights][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 a = asked[i].values[0][half], b = asked[i].values[1][half];
#pragma unroll
        for (int e = 0; e < kRowEights; ++e) {
          const uint4 x =
              *reinterpret_cast<const uint4*>(p.x.numbers + (rows.numbers[e] + g * kBlock + half * 32));
          mma_fp16(d[e], a.x, b.x, a.y, b.y, x.x, x.y);
          mma_fp16(d[e], a.z, b.z, a.w, b.w, x.z, x.w);
        }
      }
      const float v[2] = {unit_of(asked[i].exponents[0]), unit_of(asked[i].exponents[1])};
      if (g + kDeep < per_leaf) ask(asked[i], g + kDeep);
#pragma unroll
      for (int e = 0; e < kRowEights; ++e) {
        extend_four(acc[e], d[e], v,
                    {p.x.units[rows.units[e][0] + g].unit, p.x.units[rows.units[e][1] + g].unit});
      }
    }
  }
}

/// Blocks: parts of the outputs, slots.
template <int kRowEights>
__global__ void __launch_bounds__(2 * kFewWarps * 32) few_kernel(FewProductParams p) {
  let_later_kernels_begin();
  if (p.items != nullptr) wait_for_earlier_kernels();
  constexpr int kRows = 8 * kRowEights;
  extern __shared__ float sums[];  // [slot][leaf][output][row]
  const int leaves = p.weights.leaves;
  const int slots = static_cast<int>(blockDim.x) / 32 / leaves;
  const auto index = static_cast<int>(blockIdx.y);
  if (index >= slots_of(p)) return;
  const Work work = work_at<kRows>(p, index, 1);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto part = static_cast<int>(blockIdx.x);
  const int tile = tile_at(p, part, warp / leaves, slots);
  float acc[kRowEights][4] = {};
  few_leaf<kRowEights>(p, work, max(tile, 0), warp % leaves, acc);
  float* const own = sums + warp * kTile * kRows + lane % 4 * 2;
#pragma unroll
  for (int e = 0; e < kRowEights; ++e) {
    *reinterpret_cast<float2*>(own + lane / 4 * kRows + 8 * e) = {acc[e][0], acc[e][1]};
    *reinterpret_cast<float2*>(own + (lane / 4 + 8) * kRows + 8 * e) = {acc[e][2], acc[e][3]};
  }
  __syncthreads();
  const auto result = [&](int slot, int output, int row) {
    const float* const from = sums + (slot * leaves * kTile + output) * kRows + row;
    float sum = from[0];
    for (int leaf = 1; leaf < leaves; ++leaf) sum = sum + from[leaf * kTile * kRows];
    return sum;
  };
  const int written = p.swiglu != 0 ? slots / 2 : slots;
  const int columns = p.swiglu != 0 ? p.weights.n / 2 : p.weights.n;
  for (int i = static_cast<int>(threadIdx.x); i < written * kTile * work.count;
       i += static_cast<int>(blockDim.x)) {
    const int slot = i / kTile % written;
    const int row = i / (kTile * written);
    const int n = tile_at(p, part, slot, slots) * kTile + i % kTile;
    if (n < 0 || n >= columns) continue;
    float value = result(slot, i % kTile, row);
    if (p.swiglu != 0) value = swiglu(value, result(slot + written, i % kTile, row));
    p.y[y_row(p, work, row) * p.ldy + n] = value;
  }
}

template <int kRowEights>
void launch_few(Launcher& launcher, const FewProductParams& p) {
  const int leaves = p.weights.leaves;
  const int least = p.swiglu != 0 ? 2 : 1;
  const int slots = kFewWarps / leaves > least ? kFewWarps / leaves : least;
  const int warps = slots * leaves;
  launcher.add(few_kernel<kRowEights>, dim3(block_parts(p.weights, p.swiglu, slots), p.slots),
               dim3(warps * 32), p, static_cast<size_t>(warps * kTile * 8 * kRowEights * 4));
}

// Many rows: weights and rows through shared memory.

/// Stages: the rows and weights of a group as swizzled() has them, F of the outputs, u of the rows.
struct Many {
  static constexpr int kRows = kFloatRows, kTilesHere = kFloatBlockTiles;
  static constexpr int kAcross = kRows / kWarpRows;
  static constexpr int kTiles = kTilesHere * kAcross / kMmaWarps;
  static constexpr int kOutputs = kTilesHere * kTile;
  static constexpr int kRowPieces = kRows * 8 / kMmaThreads;
  static constexpr int kWeightPieces = kOutputs * 8 / kMmaThreads;
  static constexpr int kWeights = kRows * 128;
  static constexpr int kExponents = kWeights + kOutputs * 128;
  static constexpr int kUnits = kExponents + kOutputs;
  static constexpr int kStage = kUnits + kRows * 4;
  static constexpr int kStages = 4;
  static constexpr int kYRows = kStages * kStage;
  static constexpr int kBytes = kYRows + 2 * kRows * 4;
  static_assert(kTiles == 2 && kStage % 128 == 0 && kBytes <= kCommonShared && kOutputs <= kMmaThreads);

  /// What this thread copies next: group g of the piece of work `index`, whose last is end − 1.
  struct Fetch {
    int index, g = 0, end = 0;
    const uint16_t *rows[kRowPieces], *weights[kWeightPieces];
    const UnitSum* units;
    const int8_t* exponents;

    __device__ void begin(const FewProductParams& p, int parts) {
      const int thread = static_cast<int>(threadIdx.x);
      const Work work = work_at<kRows>(p, index, parts);
      const int groups = p.weights.groups();
      const int per_leaf = groups / p.weights.leaves;
      g = work.leaf * per_leaf;
      end = g + work.leaves * per_leaf;
      const auto output = [&](int i) {
        const int tile = max(tile_at<kTilesHere>(p, work.part, i / kTile), 0);
        return min(tile * kTile + i % kTile, p.weights.n - 1);
      };
#pragma unroll
      for (int i = 0; i < kRowPieces; ++i) {
        const int64_t row = x_row(p, work, min(thread / 8 + kMmaThreads / 8 * i, work.count - 1));
        rows[i] = reinterpret_cast<const uint16_t*>(p.x.numbers) + row * p.weights.k + thread % 8 * 8;
      }
#pragma unroll
      for (int i = 0; i < kWeightPieces; ++i) {
        weights[i] = float_values(p, work.expert, output(thread / 8 + kMmaThreads / 8 * i)) + thread % 8 * 8;
      }
      units = p.x.units + x_row(p, work, min(thread % kRows, work.count - 1)) * groups;
      exponents = float_exponents(p, work.expert, output(thread % kOutputs));
    }

    /// Asks for the next group of `count` pieces of work, if there is one.
    __device__ void next(const FewProductParams& p, uint32_t stage, int count, int parts) {
      if (g == end) {
        index += static_cast<int>(gridDim.x);
        if (index >= count) return;
        begin(p, parts);
      }
      const int thread = static_cast<int>(threadIdx.x);
      const int exponent = exponents[g];
      const uint32_t to = stage + swizzled(thread / 8, thread % 8);
#pragma unroll
      for (int i = 0; i < kRowPieces; ++i) copy_async(to + i * kMmaThreads * 16, rows[i] + g * kBlock);
#pragma unroll
      for (int i = 0; i < kWeightPieces; ++i) {
        copy_async(to + kWeights + i * kMmaThreads * 16, weights[i] + g * kBlock);
      }
      if (thread < kRows) copy_word_async(stage + kUnits + thread * 4, &units[g].unit);
      if (thread < kOutputs) write_byte(stage + kExponents + thread, exponent);
      ++g;
    }
  };

  static __device__ void extend(Sums<Many>& acc, uint32_t stage, const Place<Many>& place) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t b[kEights][2][4];
    float2 u[kEights];
    load_rows(stage, stage + kUnits, place, b, u);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint32_t outputs = stage + kWeights + place.slot(tile) * (kTile * 128);
      const uint32_t exponents = stage + kExponents + place.slot(tile) * kTile + lane / 4;
      float d[kEights][4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t a[4];
        load_matrices(a, outputs + swizzled(lane % 16, 2 * i + lane / 16));
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          mma_fp16(d[e], a[0], a[1], a[2], a[3], b[e][i / 2][i % 2 * 2], b[e][i / 2][i % 2 * 2 + 1]);
        }
      }
      const float v[2] = {unit_of(read_byte(exponents)), unit_of(read_byte(exponents + 8))};
#pragma unroll
      for (int e = 0; e < kEights; ++e) extend_four(acc[tile][e], d[e], v, u[e]);
    }
  }

  static __device__ void end_leaf(Sums<Many>& acc, uint32_t /*stage*/, const Place<Many>& /*place*/,
                                  bool first, Sums<Many>& total) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[tile][e][i] = first ? acc[tile][e][i] : total[tile][e][i] + acc[tile][e][i];
          acc[tile][e][i] = 0.0F;
        }
      }
    }
  }
};

__global__ void __launch_bounds__(kMmaThreads, 1) many_kernel(FewProductParams p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t begin = shared_begin(memory);
  after_earlier_kernels();
  take_pieces<Many>(p, begin);
}

}  // namespace

void product_floats(Launcher& launcher, const FewProductParams& params, int together, int processors) {
  FewProductParams p = params;
  if (p.items == nullptr) p.slots = (p.rows + together - 1) / together;
  if (together == 8) return launch_few<1>(launcher, p);
  if (together == 16) return launch_few<2>(launcher, p);
  if (together == 32) return launch_few<4>(launcher, p);
  launcher.add(many_kernel, dim3(blocks_for_pieces<Many>(p, processors)), dim3(kMmaThreads), p, Many::kBytes);
}

}  // namespace tercet::cuda
