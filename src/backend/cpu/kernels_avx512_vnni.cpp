// AVX-512 with VNNI: x86-64 servers since 2019, desktops since Zen 4.
#define TERCET_CPU_LEVEL avx512_vnni
#include "backend/cpu/simd_avx512-inl.h"

namespace tercet::cpu::avx512_vnni {

using Word = int32_t __attribute__((may_alias, aligned(1)));
using Narrow = Register;
inline constexpr int kBlocksInNarrow = 16;  // 32 bits hold every sum of a group
inline constexpr int kRowsWrittenOut[] = {8, 8};

// As assembly, since the word is then broadcast by the load itself, and GCC 12 copies the sums of intrinsics
// around in every round.
inline Narrow dot4(Narrow sum, Register q, const uint8_t* numbers) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(q.v), "m"(*reinterpret_cast<const Word*>(numbers)));
  return sum;
}
/// 128·Σ q·a + Σ q·b.
inline Wide join(Narrow a, Narrow b) { return {_mm512_add_epi32(_mm512_slli_epi32(a.v, 7), b.v)}; }
inline Wide dot2(Wide sum, Register w, const void* pair) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(w.v), "m"(*static_cast<const Word*>(pair)));
  return sum;
}

}  // namespace tercet::cpu::avx512_vnni

#include "backend/cpu/kernels-inl.h"
