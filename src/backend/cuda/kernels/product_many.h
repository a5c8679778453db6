// Products for many rows by wgmma (sm_90a): affine weights in groups of 64 with bf16 scales. Equal to
// product_few().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// Rows that a block takes at a time: 16, 32 or 64; with two planes at most 32.
constexpr int kMostTogether = 64;
constexpr int kMostTogetherOfTwoPlanes = 32;

/// As product_few(), without `which`, for x.halves; items hold at most `together` pairs. `blocks`: those that
/// the device runs at a time.
void product_many(Launcher& launcher, const FewProductParams& params, int together, int blocks);

}  // namespace tercet::cuda
