#include "backend/cuda/runtime/status.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace tercet::cuda {

void check(cudaError_t status, const char* file, int line) {
  if (status == cudaSuccess) return;
  fmt::print(stderr, "{}:{}: CUDA: {} ({})\n", file, line, cudaGetErrorString(status),
             cudaGetErrorName(status));
  std::abort();
}

}  // namespace tercet::cuda
