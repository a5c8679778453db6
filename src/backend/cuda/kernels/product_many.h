// Products for many rows by wgmma (sm_90a): affine weights in groups of 64 with bf16 scales. Equal to
// product_few().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// As product_few(), without `which`, for x.halves; items hold at most `together` pairs, those of 128 also
/// fewer by their widths (PairParams), each width with a kernel of its own. `processors`: the device's.
void product_many(Launcher& launcher, const FewProductParams& params, int together, int processors);

}  // namespace tercet::cuda
