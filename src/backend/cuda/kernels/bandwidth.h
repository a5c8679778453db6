// What the device's memory can do, and whether there is code for the device at all.
#pragma once

#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

struct ReadParams {
  const uint8_t* data;
  uint32_t* sink;  // never written where the data is not what nobody writes
  int64_t bytes;   // a multiple of 4096
};
void read_all(Launcher& launcher, const ReadParams& params);

/// Whether the program holds kernels for the current device.
bool has_code_here();

}  // namespace tercet::cuda
