// The functions of ops/exact_math.h on 16 lanes, operation for operation.
#pragma once

namespace tercet::cpu::TERCET_CPU_LEVEL {

inline float scalar_of_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t bits_of_scalar(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

/// 2^e for e in [−126, 127].
inline float power_of_two(int e) { return scalar_of_bits(static_cast<uint32_t>(e + 127) << 23); }
inline F power_of_two(I e) { return float_of_bits(shift_left<23>(e + all(127))); }

inline constexpr int kMinExponent = -64;
inline constexpr int kMaxExponent = 63;

/// The exponent of the smallest power of two ≥ y ≥ 0, at least kMinExponent.
inline int ceil_exponent(float y) {
  const uint32_t bits = bits_of_scalar(y);
  const int e = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffU) != 0 ? 1 : 0);
  return e < kMinExponent ? kMinExponent : e;
}

/// n of x rounded to nearest even to n·2^step, n having at most 11 significant bits: one rounding at the
/// coarser of both steps, then a shift.
inline I round_to_units(F x, int step) {
  const I own = (shift_right_unsigned<23>(bits_of(x)) & all(255)) - all(137);
  const I coarser = larger(own, all(step));
  return shift_left(to_int(x * power_of_two(all(0) - coarser)), coarser - all(step));
}

/// 2^f for |f| ≤ ½.
inline F exp2_of_fraction(F f) {
  F p = all(0x1.44138ap-13F);
  p = fma(p, f, all(0x1.5f0890p-10F));
  p = fma(p, f, all(0x1.3b2a54p-7F));
  p = fma(p, f, all(0x1.c6af6cp-5F));
  p = fma(p, f, all(0x1.ebfbe0p-3F));
  p = fma(p, f, all(0x1.62e430p-1F));
  return fma(p, f, all(1.0F));
}

/// 2^y: +0 below −126, infinity from 128 on, NaN for NaN.
inline F exp2_of(F y) {
  const F whole = nearest(y);
  const I e = to_int(whole);
  const I half = shift_right<1>(e);
  F result = exp2_of_fraction(y - whole) * power_of_two(e - half) * power_of_two(half);
  result = choose(less(y, all(-126.0F)), all(0.0F), result);
  const F infinity = float_of_bits(all(0x7f800000));
  return choose(less(all(0x1.fffffep6F), y), infinity, result);  // that is the largest float below 128
}

/// log2(x) for normal positive x.
inline F log2_of(F x) {
  const I bits = bits_of(x);
  const I e = shift_right<23>(bits - all(0x3f3504f3));
  const F f = float_of_bits(bits - shift_left<23>(e)) - all(1.0F);
  F q = all(0x1.900022p-4F);
  q = fma(q, f, all(-0x1.5579e8p-3F));
  q = fma(q, f, all(0x1.5d018cp-3F));
  q = fma(q, f, all(-0x1.6efd84p-3F));
  q = fma(q, f, all(0x1.a48380p-3F));
  q = fma(q, f, all(-0x1.ec7732p-3F));
  q = fma(q, f, all(0x1.277c3ep-2F));
  q = fma(q, f, all(-0x1.715480p-2F));
  q = fma(q, f, all(0x1.ec7094p-2F));
  q = fma(q, f, all(-0x1.715474p-1F));
  return to_float(e) + fma(f, all(0x1.715476p+0F), (f * f) * q);
}

inline constexpr float kLog2E = 0x1.715476p+0F;
inline constexpr float kLn2 = 0x1.62e430p-1F;

inline F sigmoid_of(F x) { return all(1.0F) / (all(1.0F) + exp2_of(negated(x * all(kLog2E)))); }

template <int N>
struct Constant {
  static constexpr int value = N;
};

/// f of each half of a tile as a Constant, so that no vector is picked at run time, through memory.
template <class Function>
[[gnu::always_inline]] inline void for_halves(Function f) {
  f(Constant<0>{});
  if constexpr (kHalves == 2) f(Constant<1>{});
}

/// f(Constant<0>), …, f(Constant<N − 1>).
template <int N, class Function>
[[gnu::always_inline]] inline void for_fields(Function f) {
  if constexpr (N > 1) for_fields<N - 1>(f);
  f(Constant<N - 1>{});
}

/// f of begin, begin + 1, … below end, a multiple of 4 of them: compilers copy sums around at the end of each
/// round, which here comes a quarter as often.
template <class Function>
inline void for_unrolled(int64_t begin, int64_t end, Function f) {
  for (int64_t i = begin; i < end; i += 4) {
    f(i);
    f(i + 1);
    f(i + 2);
    f(i + 3);
  }
}

/// The first `count` < 16 values; the other lanes hold `rest`.
inline F load_first(const float* p, int64_t count, float rest) {
  float lane[16];
  for (float& value : lane) value = rest;
  __builtin_memcpy(lane, p, static_cast<uint64_t>(count) * 4);
  return load(lane);
}
inline void store_first(float* p, F x, int64_t count) {
  float lane[16];
  store(lane, x);
  __builtin_memcpy(p, lane, static_cast<uint64_t>(count) * 4);
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
