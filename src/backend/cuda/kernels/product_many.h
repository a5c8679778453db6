// Products for many rows by wgmma (sm_90a): affine weights in groups of 64 with bf16 scales. Equal to
// product_few().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// Where blocks take a leaf each (select/division.h), this makes y of the leaves' sums.
struct LeafSumParams {
  const float* parts;  // [leaves][rows][n]
  float* y;
  int64_t ldy, leaf_stride;
  int32_t rows, n, leaves, swiglu;
};
void add_leaves(Launcher& launcher, const LeafSumParams& params);

/// As product_few(), without `which`, for x.halves; items hold at most `together` pairs, those of 128 also
/// fewer by their widths (PairParams), each width with a kernel of its own. `processors`: the device's.
void product_many(Launcher& launcher, const FewProductParams& params, int together, int processors);

}  // namespace tercet::cuda
