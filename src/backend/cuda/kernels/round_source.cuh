// Where a row that is to be rounded comes from.
#pragma once

#include "backend/cuda/kernels/rows.h"

namespace tercet::cuda {

struct RoundSource {
  const float* x;
  int64_t flag;  // of `failed`
};

/// Of row `row` of the result.
__device__ inline RoundSource source_of(const RoundParams& p, int64_t row) {
  if (p.beside != nullptr && row >= p.first_beside) {
    return {p.beside + (row - p.first_beside) * p.ldx, row - p.first_beside};
  }
  if (p.ids != nullptr) return {p.x + p.ids[row] * p.ldx, p.ids[row]};
  return {p.x + row / p.x_div * p.ldx, row / p.flag_div};
}

}  // namespace tercet::cuda
