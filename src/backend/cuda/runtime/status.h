// Answers of the CUDA runtime that only a bug of ours or a lost device can cause.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace tercet::cuda {

/// Stops the program with the place and CUDA's own words unless `status` is success.
void check(cudaError_t status, std::source_location where = std::source_location::current());

}  // namespace tercet::cuda
