// Norms and rounding with the row in shared memory, for affine weights in groups of 64. Equal to norm() and
// round_rows() of rows.h.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/kernels/rows.h"

namespace tercet::cuda {

/// As norm() with a weight and rounding, into planes, halves or both; rows of at most kHeldRow.
void norm_and_round(Launcher& launcher, const NormParams& params);

/// As round_rows() into planes, halves or both, without `list` and `which`; params.rest says whether each row
/// gives two rounded rows (its memory is not used).
void round_held_rows(Launcher& launcher, const RoundParams& params);

}  // namespace tercet::cuda
