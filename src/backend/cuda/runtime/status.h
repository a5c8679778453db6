// Answers of the CUDA runtime that only a bug of ours or a lost device can cause.
#pragma once

#include <cuda_runtime_api.h>

namespace tercet::cuda {

/// Stops the program with the place and CUDA's own words unless `status` is success.
void check(cudaError_t status, const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace tercet::cuda
