// Which instruction sets there are kernels for, and which this machine has.
#pragma once

#include <string_view>
#include <vector>

#include "backend/cpu/kernels.h"

namespace tercet {

/// From the slowest to the fastest of each processor family; each machine has some of them.
enum class CpuLevel : uint8_t { portable, avx2, avx_vnni, avx512, avx512_vnni, neon, neon_dot };

namespace cpu {

/// The levels that this machine and operating system can run, slowest first; `portable` always.
std::vector<CpuLevel> available_levels();

/// The kernels of a level that was built for this processor family.
const Kernels& kernels_of(CpuLevel level);

}  // namespace cpu
}  // namespace tercet
