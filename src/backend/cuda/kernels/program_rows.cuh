// Rows for the products of a phase (program.h), rounded by every block for itself. Equal to norm() and
// round_rows() of rows.h.
#pragma once

#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/octet.cuh"
#include "backend/cuda/kernels/program.h"
#include "backend/cuda/kernels/rounding.cuh"
#include "backend/cuda/kernels/shared.cuh"
#include "backend/cuda/kernels/weighing.cuh"

namespace tercet::cuda {

constexpr int kProgramThreads = 512;
constexpr int kProgramWarps = kProgramThreads / 32;

/// Scratch memory of the rounding of rows, in shared memory.
struct RowScratch {
  static constexpr int kLanes = 0;                           // [2][kRowThreads] floats
  static constexpr int kExponents = 2 * kRowThreads * 4;     // [2][kProgramGroups]: of rows, and of what
  static constexpr int kExponentBytes = kProgramGroups * 4;  // their rounding left
  alignas(16) uint8_t bytes[kExponents + 2 * kExponentBytes];
};

__device__ inline int divide(int n, Divisor by) {
  return by.magic == 0 ? n : static_cast<int>(__umulhi(static_cast<uint32_t>(n), by.magic));
}

/// Threads of a block that work together.
struct Team {
  int me, threads;
  int barrier;  // its own

  /// Waits for all; whether any of them said so.
  __device__ bool any(bool mine) const {
    uint32_t result = 0;
    asm volatile(
        "{\n"
        ".reg .pred p, q;\n"
        "setp.ne.u32 p, %1, 0;\n"
        "bar.red.or.pred q, %3, %2, p;\n"
        "selp.u32 %0, 1, 0, q;\n"
        "}\n"
        : "=r"(result)
        : "r"(mine ? 1U : 0U), "r"(threads), "r"(barrier)
        : "memory");
    return result != 0;
  }
  __device__ void sync() const { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
};

/// Where a row lies in shared memory.
struct SharedRow {
  uint8_t* planes;
  int k;

  __device__ uint8_t* plane(int which) const { return planes + which * SharedRowPlaces(k).second_plane; }
  __device__ UnitSum* units() const { return reinterpret_cast<UnitSum*>(planes + SharedRowPlaces(k).units); }
};

/// 1 / √(sum ÷ k + eps), each step rounded to nearest, without the branches of what rounds them everywhere:
/// sums are finite or +∞, eps at least kLeastEps, so that what could leave the range of these steps, which
/// are those that root and reciprocal take within it, is lost in the addition.
__device__ inline float inverse_norm(float sum, float k, float inverse, float eps) {
  if (sum == INFINITY) return 0.0F;
  const float value = quotient(sum, k, inverse) + eps;
  float root = 0.0F;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(value));
  const float half = root * 0.5F;
  root = value * root;
  root = fma_(fma_(-root, root, value), half, root);
  float reciprocal = 0.0F;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(root));
  return fma_(reciprocal, -fma_(reciprocal, root, -1.0F), reciprocal);
}

/// The lanes of rule 5 of up to two rows' squares, row r's by threads 256·r ….
__device__ inline void sum_lanes(const float* x, int rows, int k, uint32_t scratch) {
  constexpr int kTogether = 8;
  const int lane = static_cast<int>(threadIdx.x) % kRowThreads;
  const int row = static_cast<int>(threadIdx.x) / kRowThreads;
  if (row >= rows) return;
  const float* from = x + (row * k + lane);
  float sum = 0.0F;
#pragma unroll 1
  for (int left = k - lane; left > 0; left -= kTogether * kRowThreads) {
    float v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      v[i] = i * kRowThreads < left ? load_number(from + i * kRowThreads) : 0.0F;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) sum = fma_(v[i], v[i], sum);
    from += kTogether * kRowThreads;
  }
  write_float(scratch + RowScratch::kLanes + threadIdx.x * 4, sum);
}

/// 1 / √(mean + eps) from a row's lanes, by a warp.
__device__ inline float inverse_norm(const Source& source, uint32_t lanes) {
  const uint32_t own = lanes + threadIdx.x % 32 * 4;
  float l[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) l[i] = read_float(own + i * 128);
  return inverse_norm(row_tree(l), static_cast<float>(source.k), source.inverse, source.eps);
}

/// Whether this block is the one that keeps octet o of a row that all blocks round: they share the stores.
__device__ inline bool keeps(int o) {
  const int blocks = 1 << (31 - __clz(static_cast<int>(gridDim.x)));
  return (o & (blocks - 1)) == static_cast<int>(blockIdx.x);
}

/// The largest of a leaf's exponents, in shared memory.
__device__ inline int leaf_exponent(uint32_t exponents, int per_leaf) {
  int largest = kMinExponent;
  if (per_leaf % 4 != 0) {
#pragma unroll 1
    for (int g = 0; g < per_leaf; ++g) largest = max(largest, read_int(exponents + g * 4));
    return largest;
  }
  // Leaves begin at multiples of 16 bytes then.
#pragma unroll 1
  for (int g = 0; g < per_leaf; g += 8) {
    const uint4 a = read_words(exponents + g * 4), b = read_words(exponents + min(g + 4, per_leaf - 4) * 4);
    const auto most = [](uint4 x) {
      return max(max(static_cast<int>(x.x), static_cast<int>(x.y)),
                 max(static_cast<int>(x.z), static_cast<int>(x.w)));
    };
    largest = max(largest, max(most(a), most(b)));
  }
  return largest;
}

/// Rounds rows [first, first + count) of a source to `to`, and this block's part of them to memory where that
/// is asked for. `to` and `scratch`: shared memory, addresses from one register, which the compiler would
/// else find out again and again. kOwn: octets of a thread; they have room for a row at least. kNorm: whether
/// the source has one. kOne: count is 1.
template <int kOwn, bool kNorm, bool kOne>
__device__ __noinline__ void round_source(const Source& source, int first, int count, uint32_t to,
                                          const Team team, uint32_t scratch) {
  constexpr int kRows = kOne ? 1 : 2;  // that are normed together
  const Source s = source;             // read once, not again after everything that is written
  const auto octets = static_cast<int>(s.octets.value);
  const auto per_leaf = static_cast<int>(s.per_leaf.value);
  const int together = kOne ? 1 : min(kNorm ? kRows : count, divide(kOwn * team.threads, s.octets));
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int done = 0; done < (kOne ? 1 : count); done += together) {
    const int rows = kOne ? 1 : min(together, count - done);
    const int total = rows * octets;
    const int row0 = first + done;
    const bool idle = team.me - lane >= total;  // the whole warp
    const float* const x = s.x + row0 * s.k;
    Octet own[kOwn];
    int row[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int o = team.me + i * team.threads;
      row[i] = kOne ? 0 : divide(o, s.octets);
      own[i].clear();
      if (o < total) own[i].load_global(x + o * 8);
    }
    if constexpr (kNorm) {
      Octet weight[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int o = team.me + i * team.threads;
        weight[i].clear();
        if (o < total) weight[i].load_global(s.norm + (o - row[i] * octets) * 8);
      }
      sum_lanes(x, rows, s.k, scratch);
      __syncthreads();
      float r[kRows] = {};
      if (!idle) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          r[i] = inverse_norm(s, scratch + RowScratch::kLanes + i * kRowThreads * 4);
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int o = team.me + i * team.threads;
        if (o >= total) break;
#pragma unroll
        for (int j = 0; j < 8; ++j)
          own[i].v[j] = (own[i].v[j] * (row[i] == 0 ? r[0] : r[kRows - 1])) * weight[i].v[j];
        if (keeps(o)) own[i].put(s.h + (row0 * s.k + o * 8));
      }
    }
#pragma unroll 1
    for (int part = 0; part < s.parts; ++part) {
      const uint32_t exponents = scratch + RowScratch::kExponents + part * RowScratch::kExponentBytes;
      int exponent[kOwn];
      bool bad = false;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int o = team.me + i * team.threads;
        if (o - lane >= total) break;  // a whole warp has nothing
        exponent[i] = own[i].group_exponent();
        if (o < total && o % 8 == 0) write_int(exponents + o / 8 * 4, exponent[i]);
        bad = bad || exponent_fails(exponent[i]);
      }
      const bool any_bad = team.any(bad);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int o = team.me + i * team.threads;
        if (o - lane >= total) break;
        const bool mine = o < total;
        const int in_row = mine ? o - row[i] * octets : 0;
        const uint32_t of_row = exponents + (mine ? row[i] * (octets / 8) : 0) * 4;
        bool finite = true;
        if (any_bad) {
#pragma unroll 1
          for (int g = 0; g < octets / 8; ++g) {
            finite = finite && !exponent_fails(read_int(of_row + g * 4));
          }
          if (mine && !finite) {
            s.failed[divide(row0 + row[i], s.flags)] = 1;
            exponent[i] = 0;
            own[i].clear();
          }
        }
        const int floor = leaf_exponent(of_row + divide(in_row / 8, s.per_leaf) * per_leaf * 4, per_leaf);
        const int step = finite ? max(exponent[i], floor - 16) - 13 : 0;
        float sum = 0.0F;
        const WholeOctet whole = round_octet(own[i], step, part + 1 < s.parts, sum);
        const OctetPlanes planes = whole.planes();
        if (!mine) continue;
        const SharedRowPlaces places(s.k);
        const uint32_t row_at = to + ((done + row[i]) * s.parts + part) * s.row_bytes;
        const UnitSum unit{plain_power(step), sum};
        write_pair(row_at + in_row * 8, planes.high);
        write_pair(row_at + places.second_plane + in_row * 8, planes.low);
        if (o % 8 == 0)
          write_pair(row_at + places.units + in_row, {float_bits(unit.unit), float_bits(unit.sum)});
        if (s.planes == nullptr || !keeps(o)) continue;
        const int out = (row0 + row[i]) * s.parts + part;
        auto* const kept = reinterpret_cast<uint2*>(s.planes + 2 * out * s.k) + in_row;
        kept[0] = planes.high;
        kept[octets] = planes.low;
        if (o % 8 == 0) s.units[(out * octets + in_row) / 8] = unit;
      }
    }
    if constexpr (!kOne) team.sync();
  }
}

/// The one of these that a source's rows take.
__device__ inline void round_source(const Source& s, int first, int count, uint32_t to, const Team team,
                                    uint32_t scratch) {
  const bool norm = s.norm != nullptr;
  // Norms take two rows at a time, all else as many as there is room for.
  const bool two = max(s.k, norm ? 0 : count * s.k) > team.threads * 8;
  if (count == 1 && !two) {
    norm ? round_source<1, true, true>(s, first, 1, to, team, scratch)
         : round_source<1, false, true>(s, first, 1, to, team, scratch);
  } else if (norm) {
    two ? round_source<2, true, false>(s, first, count, to, team, scratch)
        : round_source<1, true, false>(s, first, count, to, team, scratch);
  } else {
    two ? round_source<2, false, false>(s, first, count, to, team, scratch)
        : round_source<1, false, false>(s, first, count, to, team, scratch);
  }
}

/// Loads the rows of a source that is ready.
static __device__ __noinline__ void load_source(const Source& s, uint8_t* to, const Team team) {
  const int row_bytes = s.row_bytes;
  const int pieces = s.k / 16;
  const int groups = s.k / kBlock;
#pragma unroll 1
  for (int row = 0; row < s.rows; ++row) {
    const SharedRow shared{to + row * row_bytes, s.k};
    const int from = row * s.step;
#pragma unroll 2
    for (int i = team.me; i < 2 * pieces; i += team.threads) {
      const int plane = i >= pieces ? 1 : 0;
      const int piece = i - plane * pieces;
      reinterpret_cast<uint4*>(shared.plane(plane))[piece] =
          reinterpret_cast<const uint4*>(s.planes + (2 * from + plane) * s.k)[piece];
    }
#pragma unroll 1
    for (int i = team.me; i < groups; i += team.threads) shared.units()[i] = s.units[from * groups + i];
  }
}

}  // namespace tercet::cuda
