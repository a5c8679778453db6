// How a step's operations run.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/select/device.h"

namespace tercet::cuda {

enum class StepForm : uint8_t {
  kernels,  // one after another
  program,  // as phases of one kernel (program.h), those that it can take
};

/// For a step of so many rows.
Choice<StepForm> choose_step(const DeviceTraits& device, int64_t rows);

std::string_view name_of(StepForm form);

}  // namespace tercet::cuda
