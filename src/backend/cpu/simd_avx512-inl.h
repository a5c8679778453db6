// 16 lanes in one register of AVX-512. The including file names the namespace and adds dot products.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tercet::cpu::TERCET_CPU_LEVEL {

inline constexpr int kRowsAtOnce = 8;   // rows that share a read of the weights, by the registers there are
inline constexpr int kHeadsAtOnce = 8;  // query heads that share a read of keys and values
inline constexpr int kSumsAtOnce = 8;   // chains of dot products that keep a processor busy
inline constexpr int kHalves = 1;       // registers of 32-bit lanes in a tile

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
inline I load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(int32_t* p, I x) { _mm512_storeu_si512(p, x.v); }
inline I load_bytes(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store_shorts(int16_t* p, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}

inline F all(float x) { return {_mm512_set1_ps(x)}; }
inline I all(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I lanes() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }

inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F larger(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F nearest(F x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F negated(F x) {
  return {_mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(INT32_MIN)))};
}

inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I operator-(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I operator&(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I operator^(I a, I b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline I larger(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int N>
I shift_left(I x) {
  return {_mm512_slli_epi32(x.v, N)};
}
template <int N>
I shift_right(I x) {
  return {_mm512_srai_epi32(x.v, N)};
}
template <int N>
I shift_right_unsigned(I x) {
  return {_mm512_srli_epi32(x.v, N)};
}
inline I shift_left(I x, I by) { return {_mm512_sllv_epi32(x.v, by.v)}; }
/// The two 32-bit halves of a·b as unsigned numbers.
inline void multiply_wide(I a, uint32_t b, I& high, I& low) {
  const __m512i factor = _mm512_set1_epi64(b);
  const __m512i even = _mm512_mul_epu32(a.v, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
  low.v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
  high.v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}

inline I bits_of(F x) { return {_mm512_castps_si512(x.v)}; }
inline F float_of_bits(I x) { return {_mm512_castsi512_ps(x.v)}; }
inline F to_float(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
/// Of floats to the nearest whole number, ties to even, where that fits.
inline I to_int(F x) { return {_mm512_cvtps_epi32(x.v)}; }

inline Mask less(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask less(I a, I b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
inline F choose(Mask where, F a, F b) { return {_mm512_mask_blend_ps(where.v, b.v, a.v)}; }
inline I choose(Mask where, I a, I b) { return {_mm512_mask_blend_epi32(where.v, b.v, a.v)}; }

inline int32_t largest_of(I x) { return _mm512_reduce_max_epi32(x.v); }
inline float largest_of(F x) { return _mm512_reduce_max_ps(x.v); }
inline int32_t sum_of(I x) { return _mm512_reduce_add_epi32(x.v); }
/// Lane j takes lane j + 8, j + 4, j + 2, j + 1 (rule 5).
inline float tree_sum(F x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Sums of whole numbers up to 2^40, exact while they stay below 2^53.
struct WideSum {
  __m512d low{}, high{};

  void add(F x) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)));
  }
  uint64_t total() const {
    return static_cast<uint64_t>(
        _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_cvtpd_epi64(low), _mm512_cvtpd_epi64(high))));
  }
};

inline F load_bf16(const uint8_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
inline F load_f16(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

/// Bytes of a row as products want them (ProductRow), from 16 values of a and b.
inline void store_planes(uint8_t* p, I a, I b) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const __m128i a8 = _mm512_cvtepi32_epi8(a.v);
  const __m128i b8 = _mm512_cvtepi32_epi8(b.v);
  auto* to = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(to, _mm_shuffle_epi8(_mm_unpacklo_epi64(a8, b8), order));
  _mm_storeu_si128(to + 1, _mm_shuffle_epi8(_mm_unpackhi_epi64(a8, b8), order));
}

/// A register of packed weights or cached numbers, or of sums.
struct Register {
  __m512i v;
};
using Wide = Register;  // sums in 32 bits
inline Register load_register(const void* p) { return {_mm512_loadu_si512(p)}; }
/// Bits [kShift, kShift + kBits) of each byte.
template <int kShift, int kBits>
inline Register bits_at(Register x) {
  const __m512i low = kShift == 0 ? x.v : _mm512_srli_epi16(x.v, kShift);
  return {_mm512_and_si512(low, _mm512_set1_epi8((1 << kBits) - 1))};
}
inline __m512i broadcast_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
template <int kHalf>
void add_half(I& d, Wide x) {
  d.v = _mm512_add_epi32(d.v, x.v);
}
/// Inlined at once: GCC drops calls of a function that it finds to be free of effects.
[[gnu::always_inline]] inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
