// Rounding of many rows for product_many(): a warp a row.
#pragma once

#include "backend/cuda/kernels/rows.h"

namespace tercet::cuda {

/// As round_held_rows() (rows_few.h), into halves, for rows of any length.
void round_many(Launcher& launcher, const RoundParams& params);

}  // namespace tercet::cuda
