// 16 lanes in four registers of NEON. The including file names the namespace and adds dot products.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace tercet::cpu::TERCET_CPU_LEVEL {

inline constexpr int kRowsAtOnce = 4;   // rows that share a read of the weights, by the registers there are
inline constexpr int kHeadsAtOnce = 4;  // query heads that share a read of keys and values
inline constexpr int kSumsAtOnce = 8;   // chains of dot products that keep a processor busy
inline constexpr int kHalves = 2;

struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
struct Mask {
  uint32x4_t v[4];
};

/// f(register) for each of the four.
template <class Out, class Function>
inline Out each(Function f) {
  return {{f(0), f(1), f(2), f(3)}};
}

inline F load(const float* p) {
  return each<F>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, F x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
inline I load(const int32_t* p) {
  return each<I>([&](int i) { return vld1q_s32(p + 4 * i); });
}
inline void store(int32_t* p, I x) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, x.v[i]);
}
inline I load_bytes(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
           vmovl_s16(vget_high_s16(high))}};
}
inline void store_shorts(int16_t* p, I x) {
  vst1q_s16(p, vcombine_s16(vqmovn_s32(x.v[0]), vqmovn_s32(x.v[1])));
  vst1q_s16(p + 8, vcombine_s16(vqmovn_s32(x.v[2]), vqmovn_s32(x.v[3])));
}

inline F all(float x) {
  return each<F>([&](int) { return vdupq_n_f32(x); });
}
inline I all(int32_t x) {
  return each<I>([&](int) { return vdupq_n_s32(x); });
}
inline I lanes() {
  const int32_t first[4] = {0, 1, 2, 3};
  return each<I>([&](int i) { return vaddq_s32(vld1q_s32(first), vdupq_n_s32(4 * i)); });
}

inline F operator+(F a, F b) {
  return each<F>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F operator-(F a, F b) {
  return each<F>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline F operator*(F a, F b) {
  return each<F>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F operator/(F a, F b) {
  return each<F>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline F fma(F a, F b, F c) {
  return each<F>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
/// Not the instruction, which gives NaN for one NaN.
inline F larger(F a, F b) {
  return each<F>([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F nearest(F x) {
  return each<F>([&](int i) { return vrndnq_f32(x.v[i]); });
}
inline F negated(F x) {
  return each<F>([&](int i) { return vnegq_f32(x.v[i]); });
}

inline I operator+(I a, I b) {
  return each<I>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
inline I operator-(I a, I b) {
  return each<I>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
inline I operator&(I a, I b) {
  return each<I>([&](int i) { return vandq_s32(a.v[i], b.v[i]); });
}
inline I operator^(I a, I b) {
  return each<I>([&](int i) { return veorq_s32(a.v[i], b.v[i]); });
}
inline I larger(I a, I b) {
  return each<I>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
template <int N>
I shift_left(I x) {
  return each<I>([&](int i) { return vshlq_n_s32(x.v[i], N); });
}
template <int N>
I shift_right(I x) {
  return each<I>([&](int i) { return vshrq_n_s32(x.v[i], N); });
}
template <int N>
I shift_right_unsigned(I x) {
  return each<I>([&](int i) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.v[i]), N)); });
}
inline I shift_left(I x, I by) {
  return each<I>([&](int i) { return vshlq_s32(x.v[i], by.v[i]); });
}
/// The two 32-bit halves of a·b as unsigned numbers.
inline void multiply_wide(I a, uint32_t b, I& high, I& low) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t x = vreinterpretq_u32_s32(a.v[i]);
    const uint32x4_t first = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(x), b));
    const uint32x4_t second = vreinterpretq_u32_u64(vmull_n_u32(vget_high_u32(x), b));
    low.v[i] = vreinterpretq_s32_u32(vuzp1q_u32(first, second));
    high.v[i] = vreinterpretq_s32_u32(vuzp2q_u32(first, second));
  }
}

inline I bits_of(F x) {
  return each<I>([&](int i) { return vreinterpretq_s32_f32(x.v[i]); });
}
inline F float_of_bits(I x) {
  return each<F>([&](int i) { return vreinterpretq_f32_s32(x.v[i]); });
}
inline F to_float(I x) {
  return each<F>([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}
/// Of floats to the nearest whole number, ties to even, where that fits.
inline I to_int(F x) {
  return each<I>([&](int i) { return vcvtnq_s32_f32(x.v[i]); });
}

inline Mask less(F a, F b) {
  return each<Mask>([&](int i) { return vcltq_f32(a.v[i], b.v[i]); });
}
inline Mask less(I a, I b) {
  return each<Mask>([&](int i) { return vcltq_s32(a.v[i], b.v[i]); });
}
inline I choose(Mask where, I a, I b) {
  return each<I>([&](int i) { return vbslq_s32(where.v[i], a.v[i], b.v[i]); });
}
inline F choose(Mask where, F a, F b) {
  return each<F>([&](int i) { return vbslq_f32(where.v[i], a.v[i], b.v[i]); });
}

inline int32_t largest_of(I x) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3])));
}
inline float largest_of(F x) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3])));
}
inline int32_t sum_of(I x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
/// Lane j takes lane j + 8, j + 4, j + 2, j + 1 (rule 5).
inline float tree_sum(F x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/// Sums of whole numbers up to 2^40.
struct WideSum {
  uint64x2_t sum[2] = {vdupq_n_u64(0), vdupq_n_u64(0)};

  void add(F x) {
    for (int i = 0; i < 4; ++i) {
      sum[0] = vaddq_u64(sum[0], vcvtq_u64_f64(vcvt_f64_f32(vget_low_f32(x.v[i]))));
      sum[1] = vaddq_u64(sum[1], vcvtq_u64_f64(vcvt_high_f64_f32(x.v[i])));
    }
  }
  uint64_t total() const { return vaddvq_u64(vaddq_u64(sum[0], sum[1])); }
};

inline F load_bf16(const uint8_t* p) {
  return each<F>([&](int i) {
    uint16_t bits[4];
    __builtin_memcpy(bits, p + 8 * i, 8);
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(bits), 16));
  });
}
inline F load_f16(const uint8_t* p) {
  return each<F>([&](int i) {
    uint16_t bits[4];
    __builtin_memcpy(bits, p + 8 * i, 8);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits)));
  });
}

/// Bytes of a row as products want them (ProductRow), from 16 values of a and b.
inline void store_planes(uint8_t* p, I a, I b) {
  const auto bytes = [](I x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    return vcombine_s8(vmovn_s16(low), vmovn_s16(high));
  };
  // Even ones, then odd ones: [0 2 4 6 | 8 10 12 14], [1 3 5 7 | 9 11 13 15].
  const int8x16_t first = bytes(a);
  const int8x16_t second = bytes(b);
  const int32x4_t even_a = vreinterpretq_s32_s8(vuzp1q_s8(first, first));
  const int32x4_t odd_a = vreinterpretq_s32_s8(vuzp2q_s8(first, first));
  const int32x4_t even_b = vreinterpretq_s32_s8(vuzp1q_s8(second, second));
  const int32x4_t odd_b = vreinterpretq_s32_s8(vuzp2q_s8(second, second));
  const int32_t words[8] = {vgetq_lane_s32(even_a, 0), vgetq_lane_s32(odd_a, 0),  vgetq_lane_s32(even_b, 0),
                            vgetq_lane_s32(odd_b, 0),  vgetq_lane_s32(even_a, 1), vgetq_lane_s32(odd_a, 1),
                            vgetq_lane_s32(even_b, 1), vgetq_lane_s32(odd_b, 1)};
  __builtin_memcpy(p, words, 32);
}

/// Half a tile's block of packed weights, or of cached numbers.
struct Register {
  uint8x16_t v[2];
};
/// Sums in 32 bits of the same 8 outputs.
struct Wide {
  int32x4_t v[2];
};
using Narrow = Wide;
inline constexpr int kBlocksInNarrow = 16;  // 32 bits hold every sum of a group
inline constexpr int kRowsWrittenOut[] = {0, 0};

inline Register load_register(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return {{vld1q_u8(bytes), vld1q_u8(bytes + 16)}};
}
/// Bits [kShift, kShift + kBits) of each byte.
template <int kShift, int kBits>
inline Register bits_at(Register x) {
  const auto of = [](uint8x16_t bytes) {
    if constexpr (kShift > 0) bytes = vshrq_n_u8(bytes, kShift);
    return vandq_u8(bytes, vdupq_n_u8((1 << kBits) - 1));
  };
  return {{of(x.v[0]), of(x.v[1])}};
}
/// 128·Σ q·a + Σ q·b.
inline Wide join(Narrow a, Narrow b) {
  return {{vaddq_s32(vshlq_n_s32(a.v[0], 7), b.v[0]), vaddq_s32(vshlq_n_s32(a.v[1], 7), b.v[1])}};
}
inline int32x4_t broadcast_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return vdupq_n_s32(word);
}
inline Wide dot2(Wide sum, Register w, const void* pair) {
  const int16x8_t n = vreinterpretq_s16_s32(broadcast_word(pair));
  for (int i = 0; i < 2; ++i) {
    const int16x8_t m = vreinterpretq_s16_u8(w.v[i]);
    const int32x4_t low = vmull_s16(vget_low_s16(m), vget_low_s16(n));
    sum.v[i] = vaddq_s32(sum.v[i], vpaddq_s32(low, vmull_high_s16(m, n)));
  }
  return sum;
}
template <int kHalf>
void add_half(I& d, Wide x) {
  for (int i = 0; i < 2; ++i) d.v[2 * kHalf + i] = vaddq_s32(d.v[2 * kHalf + i], x.v[i]);
}
/// Inlined at once: GCC drops calls of a function that it finds to be free of effects.
[[gnu::always_inline]] inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
