#include <cpuid.h>

#include "backend/cpu/level.h"

namespace tercet::cpu {

namespace portable {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx_vnni {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512_vnni {
extern const Kernels kKernels;
}

namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned part) {
  Registers r;
  if (__get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

bool has(unsigned word, int bit) { return ((word >> bit) & 1U) != 0; }

/// Which registers the operating system saves when it switches threads.
unsigned saved_registers() {
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

std::vector<CpuLevel> available_levels() {
  std::vector<CpuLevel> levels = {CpuLevel::portable};
  constexpr unsigned kYmm = 0x06;
  constexpr unsigned kZmm = 0xe6;
  const Registers basic = cpuid(1, 0);
  const Registers extended = cpuid(7, 0);
  const bool os_tells = has(basic.c, 27);
  const unsigned saved = os_tells ? saved_registers() : 0;
  const bool fma_f16c = has(basic.c, 12) && has(basic.c, 29);
  if (!fma_f16c || !has(extended.b, 5) || (saved & kYmm) != kYmm) return levels;
  levels.push_back(CpuLevel::avx2);
  if (has(cpuid(7, 1).a, 4)) levels.push_back(CpuLevel::avx_vnni);
  const bool f_dq_bw_vl =
      has(extended.b, 16) && has(extended.b, 17) && has(extended.b, 30) && has(extended.b, 31);
  if (!f_dq_bw_vl || (saved & kZmm) != kZmm) return levels;
  levels.push_back(CpuLevel::avx512);
  if (has(extended.c, 11)) levels.push_back(CpuLevel::avx512_vnni);
  return levels;
}

const Kernels& kernels_of(CpuLevel level) {
  switch (level) {
    case CpuLevel::avx2:
      return avx2::kKernels;
    case CpuLevel::avx_vnni:
      return avx_vnni::kKernels;
    case CpuLevel::avx512:
      return avx512::kKernels;
    case CpuLevel::avx512_vnni:
      return avx512_vnni::kKernels;
    case CpuLevel::portable:
    case CpuLevel::neon:
    case CpuLevel::neon_dot:
      break;
  }
  return portable::kKernels;
}

}  // namespace tercet::cpu
