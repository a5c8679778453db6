// AVX2 with the dot products of AVX-VNNI: x86-64 processors since 2021 that lack AVX-512.
#define TERCET_CPU_LEVEL avx_vnni
#include "backend/cpu/simd_avx2-inl.h"

namespace tercet::cpu::avx_vnni {

using Narrow = Register;
inline constexpr int kBlocksInNarrow = 16;  // 32 bits hold every sum of a group
inline constexpr int kRowsWrittenOut[] = {4, 1};

// As assembly, since GCC 12 copies the sums of intrinsics around in every round.
inline Narrow dot4(Narrow sum, Register q, const uint8_t* numbers) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.v) : "x"(q.v), "x"(broadcast_word(numbers)));
  return sum;
}
/// 128·Σ q·a + Σ q·b.
inline Wide join(Narrow a, Narrow b) { return {_mm256_add_epi32(_mm256_slli_epi32(a.v, 7), b.v)}; }
inline Wide dot2(Wide sum, Register w, const void* pair) {
  asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum.v) : "x"(w.v), "x"(broadcast_word(pair)));
  return sum;
}

}  // namespace tercet::cpu::avx_vnni

#include "backend/cpu/kernels-inl.h"
