#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/product_warps.h"
#include "ops/exact_math.h"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 8;   // of a block
constexpr int kPiece = 16;  // numbers of a group that a lane multiplies at a time
constexpr int kRowsAtOnce = 4;

struct Piece {
  int numbers[kPiece];
};

__device__ inline int whole_number(uint32_t bits, bool half) {
  return half ? static_cast<int>(half_value(static_cast<uint16_t>(bits)))
              : static_cast<int>(static_cast<int16_t>(bits));
}

/// 16 int16, or fp16 (`halves`), aligned to 16 bytes.
__device__ inline Piece whole_numbers(const int16_t* from, bool halves) {
  const uint4 pieces[2] = {reinterpret_cast<const uint4*>(from)[0], reinterpret_cast<const uint4*>(from)[1]};
  Piece out;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t words[4] = {pieces[i].x, pieces[i].y, pieces[i].z, pieces[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t low = words[j] & 0xffffU, high = words[j] >> 16;
      out.numbers[8 * i + 2 * j] = whole_number(low, halves);
      out.numbers[8 * i + 2 * j + 1] = whole_number(high, halves);
    }
  }
  return out;
}

/// q of numbers [at, at + 16) of output n.
__device__ inline Piece plane_numbers(const Weights& w, int n, int plane, int at) {
  const int64_t first = (int64_t{n / kTile} * w.blocks() + at / kBlock) * w.planes + plane;
  const int lane = n % 8 * 4 + at % kBlock / kPiece;
  const uint2 q =
      *reinterpret_cast<const uint2*>(w.values + first * kBlockBytes + lane * 16 + n % kTile / 8 * 8);
  Piece out;
#pragma unroll
  for (int i = 0; i < kPiece; ++i)
    out.numbers[i] = static_cast<int>((i < 8 ? q.x : q.y) >> (i % 8 * 4) & 15U);
  return out;
}

/// Of the group that `lanes` lanes, a power of two, hold side by side.
__device__ inline int group_sum(const Piece& a, const Piece& b, int lanes) {
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) sum += a.numbers[i] * b.numbers[i];
  for (int step = 1; step < lanes; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
  return sum;
}

__device__ inline float from_lane(float x, int lane) { return __shfl_sync(kAll, x, lane); }

/// Scale and bias of a group; of float weights 2^(F − 12) and nothing.
__device__ inline float2 factors(const Weights& w, int n, int g) {
  if (w.planes == 0) {
    const int f = reinterpret_cast<const int8_t*>(w.scales)[int64_t{n} * w.groups() + g];
    return {power_of_two(f - 12), 0.0F};
  }
  const int64_t at = (int64_t{n / kTile} * w.groups() + g) * kTile + n % 8 * 2 + n % kTile / 8;
  if (w.wide != 0) return reinterpret_cast<const float2*>(w.scales)[at];
  const uint32_t pair = reinterpret_cast<const uint32_t*>(w.scales)[at];
  return {float_from_bits(pair << 16), float_from_bits(pair & 0xffff0000U)};
}

/// Rows first … first + count of output n, at most kRows. The groups of a step are summed side by side; the
/// chain of rule 2 then takes them one after another, in every lane.
template <int kRows>
__device__ void output(const ProductParams& p, const Weights& w, int n, int64_t first, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int lanes = w.group / kPiece;
  const int at_once = 32 / lanes;
  const int per_leaf = w.groups() / w.leaves;
  float total[kRows];
#pragma unroll 1
  for (int leaf = 0; leaf < w.leaves; ++leaf) {
    float acc[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) acc[r] = 0.0F;
#pragma unroll 1
    for (int step = 0; step < per_leaf; step += at_once) {
      const int here = min(at_once, per_leaf - step);
      const int g = leaf * per_leaf + step + min(lane / lanes, here - 1);
      const int at = g * w.group + lane % lanes * kPiece;
      const float2 factor = factors(w, n, g);
      Piece high, low;
      if (w.planes == 0) {
        low = whole_numbers(reinterpret_cast<const int16_t*>(w.values) + int64_t{n} * w.k + at, true);
      } else {
        low = plane_numbers(w, n, w.planes - 1, at);
        if (w.planes == 2) high = plane_numbers(w, n, 0, at);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t row = first + min(r, count - 1);
        const Piece x = whole_numbers(p.x.numbers + row * w.k + at, w.planes == 0);
        const UnitSum u = p.x.units[row * p.units_per_row + g];
        const float low_sum = static_cast<float>(group_sum(low, x, lanes));
        const float high_sum = w.planes == 2 ? static_cast<float>(group_sum(high, x, lanes)) : 0.0F;
        const float high_unit = factor.x * (16.0F * u.unit);
        const float low_unit = factor.x * u.unit;
        const float bias = factor.y * u.unit;
#pragma unroll 1
        for (int j = 0; j < here; ++j) {
          const int of = j * lanes;
          if (w.planes == 2) acc[r] = fma_(from_lane(high_unit, of), from_lane(high_sum, of), acc[r]);
          acc[r] = fma_(from_lane(low_unit, of), from_lane(low_sum, of), acc[r]);
          if (w.planes != 0) acc[r] = fma_(from_lane(bias, of), from_lane(u.sum, of), acc[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) total[r] = leaf == 0 ? acc[r] : total[r] + acc[r];
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (lane == 0 && r < count) p.y[(first + r) * p.ldy + n] = total[r];
  }
}

template <int kRows>
__global__ void __launch_bounds__(kWarps * 32) warps_kernel(ProductParams p) {
  after_earlier_kernels();
  const int n = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  if (n >= p.n) return;
  const Weights w = p.which == nullptr ? p.weights : p.list[p.which[first]];
  output<kRows>(p, w, n, first, static_cast<int>(min(int64_t{kRows}, p.rows - first)));
}

}  // namespace

void product_warps(Launcher& launcher, const ProductParams& params) {
  const auto outputs = static_cast<unsigned>((params.n + kWarps - 1) / kWarps);
  const bool alone = params.which != nullptr || params.rows == 1;
  const auto rows =
      static_cast<unsigned>(alone ? params.rows : (params.rows + kRowsAtOnce - 1) / kRowsAtOnce);
  launcher.add(alone ? warps_kernel<1> : warps_kernel<kRowsAtOnce>, dim3(rows, outputs), dim3(kWarps * 32),
               params);
}

}  // namespace tercet::cuda
