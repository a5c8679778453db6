// AVX2 and FMA: x86-64 since 2013.
#define TERCET_CPU_LEVEL avx2
#include "backend/cpu/simd_avx2-inl.h"

namespace tercet::cpu::avx2 {

/// Sums of q·a or q·b in 16 bits: 8 products of pairs, each at most 15·127·2, fit.
using Narrow = Register;
inline constexpr int kBlocksInNarrow = 4;
inline constexpr int kRowsWrittenOut[] = {1, 1};

inline Narrow dot4(Narrow sum, Register q, const uint8_t* numbers) {
  return {_mm256_add_epi16(sum.v, _mm256_maddubs_epi16(q.v, broadcast_word(numbers)))};
}
/// 128·Σ q·a + Σ q·b in 32 bits.
inline Wide join(Narrow a, Narrow b) {
  return {_mm256_add_epi32(_mm256_madd_epi16(a.v, _mm256_set1_epi16(128)),
                           _mm256_madd_epi16(b.v, _mm256_set1_epi16(1)))};
}
inline Wide dot2(Wide sum, Register w, const void* pair) {
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(w.v, broadcast_word(pair)))};
}

}  // namespace tercet::cpu::avx2

#include "backend/cpu/kernels-inl.h"
