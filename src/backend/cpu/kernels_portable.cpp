// Plain C++ in the structure of the vector kernels: for machines without their instructions.
#define TERCET_CPU_LEVEL portable
#include "backend/cpu/simd_portable-inl.h"

namespace tercet::cpu::portable {

using Narrow = I;
inline constexpr int kBlocksInNarrow = 16;
inline constexpr int kRowsWrittenOut[] = {0, 0};

inline Narrow dot4(const Narrow& sum, const Register& q, const uint8_t* numbers) {
  int8_t n[4];
  std::memcpy(n, numbers, 4);
  return each<I>([&](int i) {
    const uint8_t* word = q.v + 4 * i;
    return sum.v[i] + word[0] * n[0] + word[1] * n[1] + word[2] * n[2] + word[3] * n[3];
  });
}
/// 128·Σ q·a + Σ q·b.
inline Wide join(const Narrow& a, const Narrow& b) { return shift_left<7>(a) + b; }
inline Wide dot2(const Wide& sum, const Register& w, const void* pair) {
  int16_t n[2];
  std::memcpy(n, pair, 4);
  int16_t m[32];
  std::memcpy(m, w.v, 64);
  return each<I>([&](int i) { return sum.v[i] + m[2 * i] * n[0] + m[2 * i + 1] * n[1]; });
}

}  // namespace tercet::cpu::portable

#include "backend/cpu/kernels-inl.h"
