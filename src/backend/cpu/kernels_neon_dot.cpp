// NEON with its dot product: ARM servers, phones and laptops since 2018.
#define TERCET_CPU_LEVEL neon_dot
#include "backend/cpu/simd_neon-inl.h"

namespace tercet::cpu::neon_dot {

inline Narrow dot4(Narrow sum, Register q, const uint8_t* numbers) {
  const int8x16_t n = vreinterpretq_s8_s32(broadcast_word(numbers));
  for (int i = 0; i < 2; ++i) {
    sum.v[i] = vdotq_s32(sum.v[i], vreinterpretq_s8_u8(q.v[i]), n);  // q is at most 15
  }
  return sum;
}

}  // namespace tercet::cpu::neon_dot

#include "backend/cpu/kernels-inl.h"
