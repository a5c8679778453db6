// Products for many rows by wgmma (sm_90a): affine weights in groups of 64 with bf16 scales. Equal to
// product_few().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// How many of `rows` rows (or pairs, on average of an expert) blocks should take at a time: 16, 32, 64 or
/// 128. `copies`: experts that are in use.
int rows_together(const Weights& weights, bool swiglu, int64_t rows, int64_t copies, int processors);

/// Where there is less work than half the device, blocks take a leaf each: p.leaf_stride is then this, else
/// 0. y is scratch of as many floats for each leaf, without SwiGLU; add_leaves() makes y of it.
int64_t leaf_floats(const Weights& weights, int64_t rows, int together, bool swiglu, int processors);
struct LeafSumParams {
  const float* parts;  // [leaves][rows][n]
  float* y;
  int64_t ldy, leaf_stride;
  int32_t rows, n, leaves, swiglu;
};
void add_leaves(Launcher& launcher, const LeafSumParams& params);

/// As product_few(), without `which`, for x.halves; items hold at most `together` pairs. `processors`: the
/// device's.
void product_many(Launcher& launcher, const FewProductParams& params, int together, int processors);

}  // namespace tercet::cuda
