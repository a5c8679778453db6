#include "backend/cuda/runtime/status.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace tercet::cuda {

void check(cudaError_t status, std::source_location where) {
  if (status == cudaSuccess) return;
  fmt::print(stderr, "{}:{}: CUDA: {} ({})\n", where.file_name(), where.line(), cudaGetErrorString(status),
             cudaGetErrorName(status));
  std::abort();
}

}  // namespace tercet::cuda
