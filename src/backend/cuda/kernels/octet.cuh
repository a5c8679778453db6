// Eight numbers side by side of a row that is rounded (rule 1), by a thread; the octets of a group lie in
// lanes side by side.
#pragma once

#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/halves.cuh"

namespace tercet::cuda {

// By instructions for global memory, which the compiler does not find out of an address that came from
// memory.
__device__ inline float4 load_numbers(const float* from) {
  float4 x;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(__cvta_generic_to_global(from)));
  return x;
}
__device__ inline float load_number(const float* from) {
  float x;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}

struct Octet {
  float v[8];

  __device__ void load(const float* from) { set(load_four(from), load_four(from + 4)); }
  __device__ void load_global(const float* from) { set(load_numbers(from), load_numbers(from + 4)); }
  __device__ void set(float4 a, float4 b) {
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }
  __device__ void put(float* to) const {
    store_four(to, {v[0], v[1], v[2], v[3]});
    store_four(to + 4, {v[4], v[5], v[6], v[7]});
  }
  __device__ void clear() {
#pragma unroll
    for (float& x : v) x = 0.0F;
  }
  /// E of the group, which all of its eight lanes get.
  __device__ int group_exponent() const {
    uint32_t largest = 0;
#pragma unroll
    for (const float x : v) largest = max(largest, magnitude_bits(x));
#pragma unroll
    for (int apart = 1; apart < 8; apart *= 2) largest = max(largest, __shfl_xor_sync(kAll, largest, apart));
    return ceil_exponent(float_from_bits(largest));
  }
};

/// The two planes of an octet, in their order (plane_slot()).
struct OctetPlanes {
  uint2 high, low;
};

/// Rounded numbers of an octet: n·2^-24.
struct WholeOctet {
  float n[8];

  __device__ OctetPlanes planes() const {
    // Whole numbers 2n behind the bits of 1.5·2^23: byte 1 is n's high plane, byte 0 twice its low one.
    uint32_t bits[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) bits[i] = float_bits(fma_(n[i], 0x1p25F, 12582912.0F));
    const auto split = [](uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t& high, uint32_t& low) {
      const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
      high = __byte_perm(ab, cd, 0x7632);
      low = __byte_perm(ab, cd, 0x5410) >> 1;
    };
    OctetPlanes out;
    split(bits[0], bits[2], bits[4], bits[6], out.high.x, out.low.x);
    split(bits[1], bits[3], bits[5], bits[7], out.high.y, out.low.y);
    return out;
  }

  /// To a group's halves (Rounded), `octet` being which of the group's; step: of u, of_leaf: E of the leaf.
  __device__ void put_halves(uint16_t* group, int octet, int step, int of_leaf) const {
    const float even = plain_power(step - of_leaf + 39), odd = even * 0x1p-4F;
    auto* const to = reinterpret_cast<uint32_t*>(group) + octet % 2 * 4 + octet / 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float up = j % 2 == 0 ? even : odd;
      const __half2 pair = __floats2half2_rn(n[j] * up, n[4 + j] * up);
      to[8 * j] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
};

/// Rounds an octet; where `keeps_rest`, it becomes what the rounding left. `sum`: Σ n of the group.
///
/// Divided by 2^(step + 24), numbers are rounded by a conversion: fp16's least step is 2^-24 then, and it has
/// 11 bits as well.
__device__ inline WholeOctet round_octet(Octet& x, int step, bool keeps_rest, float& sum) {
  const float down = plain_power(-step - 24);
  WholeOctet out;
  float all = 0.0F;  // of whole numbers, exact
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const float2 pair = __half22float2(__floats2half2_rn(x.v[i] * down, x.v[i + 1] * down));
    out.n[i] = pair.x;
    out.n[i + 1] = pair.y;
    all += pair.x + pair.y;
  }
  if (keeps_rest) {
    const float up = plain_power(step + 24);
#pragma unroll
    for (int i = 0; i < 8; ++i) x.v[i] = fma_(-out.n[i], up, x.v[i]);
  }
#pragma unroll
  for (int apart = 1; apart < 8; apart *= 2) all += __shfl_xor_sync(kAll, all, apart);
  sum = all * 0x1p24F;
  return out;
}

}  // namespace tercet::cuda
