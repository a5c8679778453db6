// NEON: every 64-bit ARM processor.
#define TERCET_CPU_LEVEL neon
#include "backend/cpu/simd_neon-inl.h"

namespace tercet::cpu::neon {

inline Narrow dot4(Narrow sum, Register q, const uint8_t* numbers) {
  const int8x16_t n = vreinterpretq_s8_s32(broadcast_word(numbers));
  for (int i = 0; i < 2; ++i) {
    const int8x16_t w = vreinterpretq_s8_u8(q.v[i]);  // at most 15
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(n));
    sum.v[i] = vpadalq_s16(sum.v[i], vpaddq_s16(low, vmull_high_s8(w, n)));
  }
  return sum;
}

}  // namespace tercet::cpu::neon

#include "backend/cpu/kernels-inl.h"
