// The end of products whose leaves were computed apart.
#pragma once

#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// Where blocks take a leaf each (select/division.h), this makes y of the leaves' sums.
struct LeafSumParams {
  const float* parts;  // [leaves][rows][n]
  float* y;
  int64_t ldy, leaf_stride;
  int32_t rows, n, leaves, swiglu;
};
void add_leaves(Launcher& launcher, const LeafSumParams& params);

}  // namespace tercet::cuda
