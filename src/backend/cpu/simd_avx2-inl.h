// 16 lanes in two registers of AVX2. The including file names the namespace and adds dot products.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tercet::cpu::TERCET_CPU_LEVEL {

inline constexpr int kRowsAtOnce = 4;   // rows that share a read of the weights, by the registers there are
inline constexpr int kHeadsAtOnce = 4;  // query heads that share a read of keys and values
inline constexpr int kSumsAtOnce = 8;   // chains of dot products that keep a processor busy
inline constexpr int kHalves = 2;       // registers of 32-bit lanes in a tile

struct F {
  __m256 low, high;
};
struct I {
  __m256i low, high;
};
struct Mask {
  __m256i low, high;
};

inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline I load(const int32_t* p) {
  const auto* from = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
inline void store(int32_t* p, I x) {
  auto* to = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(to, x.low);
  _mm256_storeu_si256(to + 1, x.high);
}
inline I load_bytes(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
/// The 16 lanes as int16, in order.
inline __m256i to_shorts(I x) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.low, x.high), 0xd8); }
inline void store_shorts(int16_t* p, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_shorts(x));
}

inline F all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline I all(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I lanes() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

inline F operator+(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline F operator-(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline F operator*(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline F operator/(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F larger(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline F nearest(F x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kMode), _mm256_round_ps(x.high, kMode)};
}
inline F negated(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_xor_ps(x.low, sign), _mm256_xor_ps(x.high, sign)};
}

inline I operator+(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline I operator-(I a, I b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
inline I operator&(I a, I b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
inline I operator^(I a, I b) { return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)}; }
inline I larger(I a, I b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
template <int N>
I shift_left(I x) {
  return {_mm256_slli_epi32(x.low, N), _mm256_slli_epi32(x.high, N)};
}
template <int N>
I shift_right(I x) {
  return {_mm256_srai_epi32(x.low, N), _mm256_srai_epi32(x.high, N)};
}
template <int N>
I shift_right_unsigned(I x) {
  return {_mm256_srli_epi32(x.low, N), _mm256_srli_epi32(x.high, N)};
}
inline I shift_left(I x, I by) {
  return {_mm256_sllv_epi32(x.low, by.low), _mm256_sllv_epi32(x.high, by.high)};
}
inline void multiply_wide(__m256i a, __m256i factor, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
/// The two 32-bit halves of a·b as unsigned numbers.
inline void multiply_wide(I a, uint32_t b, I& high, I& low) {
  const __m256i factor = _mm256_set1_epi64x(b);
  multiply_wide(a.low, factor, high.low, low.low);
  multiply_wide(a.high, factor, high.high, low.high);
}

inline I bits_of(F x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
inline F float_of_bits(I x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
/// Of floats to the nearest whole number, ties to even, where that fits.
inline I to_int(F x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }

inline Mask less(F a, F b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline Mask less(I a, I b) { return {_mm256_cmpgt_epi32(b.low, a.low), _mm256_cmpgt_epi32(b.high, a.high)}; }
inline I choose(Mask where, I a, I b) {
  return {_mm256_blendv_epi8(b.low, a.low, where.low), _mm256_blendv_epi8(b.high, a.high, where.high)};
}
inline F choose(Mask where, F a, F b) { return float_of_bits(choose(where, bits_of(a), bits_of(b))); }

inline int32_t largest_of(I x) {
  const __m256i eight = _mm256_max_epi32(x.low, x.high);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
inline float largest_of(F x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline int32_t sum_of(I x) {
  const __m256i eight = _mm256_add_epi32(x.low, x.high);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
/// Lane j takes lane j + 8, j + 4, j + 2, j + 1 (rule 5).
inline float tree_sum(F x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Sums of whole numbers up to 2^40, exact while they stay below 2^53.
struct WideSum {
  __m256d sum[4] = {};

  void add(F x) {
    sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x.low)));
    sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)));
    sum[2] = _mm256_add_pd(sum[2], _mm256_cvtps_pd(_mm256_castps256_ps128(x.high)));
    sum[3] = _mm256_add_pd(sum[3], _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1)));
  }
  uint64_t total() const {
    double lane[16];
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(lane + 4 * i, sum[i]);
    uint64_t out = 0;
    for (const double value : lane) out += static_cast<uint64_t>(value);
    return out;
  }
};

inline F load_bf16(const uint8_t* p) {
  const auto* from = reinterpret_cast<const __m128i*>(p);
  return float_of_bits({_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), 16),
                        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from + 1)), 16)});
}
inline F load_f16(const uint8_t* p) {
  const auto* from = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
}

/// Bytes of a row as products want them (ProductRow), from 16 values of a and b.
inline void store_planes(uint8_t* p, I a, I b) {
  // In each half: bytes of a, then of b, of the same 8 values.
  const __m256i bytes = _mm256_packs_epi16(to_shorts(a), to_shorts(b));
  const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,  //
                                         0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shuffle_epi8(bytes, order));
}

/// A register of packed weights or cached numbers, or of sums.
struct Register {
  __m256i v;
};
using Wide = Register;  // sums in 32 bits
inline Register load_register(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
/// Bits [kShift, kShift + kBits) of each byte.
template <int kShift, int kBits>
inline Register bits_at(Register x) {
  const __m256i low = kShift == 0 ? x.v : _mm256_srli_epi16(x.v, kShift);
  return {_mm256_and_si256(low, _mm256_set1_epi8((1 << kBits) - 1))};
}
inline __m256i broadcast_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
template <int kHalf>
void add_half(I& d, Wide x) {
  __m256i& to = kHalf == 0 ? d.low : d.high;
  to = _mm256_add_epi32(to, x.v);
}
/// Inlined at once: GCC drops calls of a function that it finds to be free of effects.
[[gnu::always_inline]] inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
