// Products for one to four rows: a block asks for all its weights at once, and where they depend on no
// earlier kernel, before those have ended. Equal to product_few().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// As product_few(), without `items`, for at most kRowRows rows; needs row_shared() bytes of shared memory.
void product_row(Launcher& launcher, const FewProductParams& params);

/// z[row] = Σ weight·(down of the row's j-th expert), experts in ascending index, then + shared (rule 11),
/// for one row a block column: a row's experts side by side. Rows of x: row·chosen + j.
struct FewDownParams {
  Weights weights;
  const int32_t* experts;  // [rows][chosen]
  const float* route_weights;
  const float* shared;  // [rows][n], or null
  float* z;             // [rows][n]
  Rounded x;
  int64_t values_stride, scales_stride;
  int32_t rows, chosen;
};
/// At most kFewChosen experts of a row; needs down_shared() bytes of shared memory.
void down_few(Launcher& launcher, const FewDownParams& params);

}  // namespace tercet::cuda
