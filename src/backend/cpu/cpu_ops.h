// The reference's bits at the speed of the memory, on any x86-64 or ARM processor.
#pragma once

#include <memory>
#include <optional>

#include "backend/cpu/level.h"
#include "ops/ops.h"

namespace tercet {

/// Uses the fastest instruction set that this machine has and whose kernels give the reference's bits on some
/// milliseconds of hard rows; one that fails is logged and not used. A `level` that is given is used as it
/// is: the machine must have it. `threads` share out rows and outputs, so their number changes no bit.
std::unique_ptr<Ops> make_cpu_ops(int threads, std::optional<CpuLevel> level = std::nullopt);

}  // namespace tercet
