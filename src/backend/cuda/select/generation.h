// Whether the fast kernels may run on a device at all.
#pragma once

#include <optional>

#include "backend/cuda/select/device.h"

namespace tercet::cuda {

enum class KernelSet : uint8_t { plain, fast };

/// `verified`: what `tercet verify device` found there, if it ran. Of the fast kernels the start-up gate asks
/// more (gate.h).
Choice<KernelSet> choose_kernels(const DeviceTraits& device, std::optional<bool> verified);

}  // namespace tercet::cuda
