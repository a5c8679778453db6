// Processors other than x86-64 and 64-bit ARM run the portable kernels.
#include "backend/cpu/level.h"

namespace tercet::cpu {

namespace portable {
extern const Kernels kKernels;
}

std::vector<CpuLevel> available_levels() { return {CpuLevel::portable}; }

const Kernels& kernels_of(CpuLevel) { return portable::kKernels; }

}  // namespace tercet::cpu
