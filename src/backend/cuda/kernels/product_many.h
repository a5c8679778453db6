// Products for many rows by wgmma (sm_90a): affine weights in groups of 64 with bf16 scales. Equal to
// product_few().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// Bytes of x.halves, and of an expert's or a product's weights, must be less than this.
constexpr int64_t kManyBytes = int64_t{1} << 32;

/// How many of `rows` rows (or pairs, on average of an expert) blocks should take at a time: 16, 32, 64 or
/// 128. `copies`: experts that are in use.
int rows_together(const Weights& weights, bool swiglu, int64_t rows, int64_t copies, int processors);

/// As product_few(), without `which`, for x.halves; items hold at most `together` pairs. `processors`: the
/// device's.
void product_many(Launcher& launcher, const FewProductParams& params, int together, int processors);

}  // namespace tercet::cuda
