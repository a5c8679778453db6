// AVX-512 with VNNI: x86-64 servers since 2019, desktops since Zen 4.
#define TERCET_CPU_LEVEL avx512_vnni
#include "backend/cpu/simd_avx512-inl.h"

namespace tercet::cpu::avx512_vnni {

using Narrow = Register;
inline constexpr int kBlocksInNarrow = 16;  // 32 bits hold every sum of a group

inline Narrow dot4(Narrow sum, Register q, const uint8_t* numbers) {
  return {_mm512_dpbusd_epi32(sum.v, q.v, broadcast_word(numbers))};
}
/// 128·Σ q·a + Σ q·b.
inline Wide join(Narrow a, Narrow b) { return {_mm512_add_epi32(_mm512_slli_epi32(a.v, 7), b.v)}; }
inline Wide dot2(Wide sum, Register w, const void* pair) {
  return {_mm512_dpwssd_epi32(sum.v, w.v, broadcast_word(pair))};
}

}  // namespace tercet::cpu::avx512_vnni

#include "backend/cpu/kernels-inl.h"
