// AVX-512 F, BW, DQ and VL: x86-64 servers since 2017.
#define TERCET_CPU_LEVEL avx512
#include "backend/cpu/simd_avx512-inl.h"

namespace tercet::cpu::avx512 {

/// Sums of q·a or q·b in 16 bits: 8 products of pairs, each at most 15·127·2, fit.
using Narrow = Register;
inline constexpr int kBlocksInNarrow = 4;
inline constexpr int kRowsWrittenOut[] = {8, 3};

inline Narrow dot4(Narrow sum, Register q, const uint8_t* numbers) {
  return {_mm512_add_epi16(sum.v, _mm512_maddubs_epi16(q.v, broadcast_word(numbers)))};
}
/// 128·Σ q·a + Σ q·b in 32 bits.
inline Wide join(Narrow a, Narrow b) {
  return {_mm512_add_epi32(_mm512_madd_epi16(a.v, _mm512_set1_epi16(128)),
                           _mm512_madd_epi16(b.v, _mm512_set1_epi16(1)))};
}
inline Wide dot2(Wide sum, Register w, const void* pair) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(w.v, broadcast_word(pair)))};
}

}  // namespace tercet::cpu::avx512

#include "backend/cpu/kernels-inl.h"
