// Whether an instruction set gives the reference's bits on this machine.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/kernels.h"

namespace tercet::cpu {

/// The names of the kernels that differ from the reference on hard rows; empty where all is well. Some
/// milliseconds.
std::vector<std::string> failing_kernels(const Kernels& kernels);

}  // namespace tercet::cpu
