// The plain product of rounded rows with weights (rules 1 to 3): every form, a thread an output.
#pragma once

#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// y[row, n] = Σ w[n, k]·x[row, k]; x.numbers. Row r takes list[which[r]] where `which` is not null, all of
/// which have n outputs. Rows of y begin every ldy floats.
struct ProductParams {
  const Weights* list;
  const int32_t* which;
  float* y;
  Rounded x;
  Weights weights;
  int64_t ldy;
  int32_t rows, n, units_per_row, zero;
};
void product(Launcher& launcher, const ProductParams& params);

}  // namespace tercet::cuda
