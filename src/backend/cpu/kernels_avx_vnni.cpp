// AVX2 with the dot products of AVX-VNNI: x86-64 processors since 2021 that lack AVX-512.
#define TERCET_CPU_LEVEL avx_vnni
#include "backend/cpu/simd_avx2-inl.h"

namespace tercet::cpu::avx_vnni {

using Narrow = Register;
inline constexpr int kBlocksInNarrow = 16;  // 32 bits hold every sum of a group

inline Narrow dot4(Narrow sum, Register q, const uint8_t* numbers) {
  return {_mm256_dpbusd_avx_epi32(sum.v, q.v, broadcast_word(numbers))};
}
/// 128·Σ q·a + Σ q·b.
inline Wide join(Narrow a, Narrow b) { return {_mm256_add_epi32(_mm256_slli_epi32(a.v, 7), b.v)}; }
inline Wide dot2(Wide sum, Register w, const void* pair) {
  return {_mm256_dpwssd_avx_epi32(sum.v, w.v, broadcast_word(pair))};
}

}  // namespace tercet::cpu::avx_vnni

#include "backend/cpu/kernels-inl.h"
