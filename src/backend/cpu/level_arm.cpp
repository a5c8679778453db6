#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "backend/cpu/level.h"

namespace tercet::cpu {

namespace portable {
extern const Kernels kKernels;
}
namespace neon {
extern const Kernels kKernels;
}
namespace neon_dot {
extern const Kernels kKernels;
}

std::vector<CpuLevel> available_levels() {
  std::vector<CpuLevel> levels = {CpuLevel::portable, CpuLevel::neon};
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) levels.push_back(CpuLevel::neon_dot);
  return levels;
}

const Kernels& kernels_of(CpuLevel level) {
  if (level == CpuLevel::neon) return neon::kKernels;
  if (level == CpuLevel::neon_dot) return neon_dot::kKernels;
  return portable::kKernels;
}

}  // namespace tercet::cpu
