// Products for many rows by mma.sync (fp16), which every generation has from sm_80 on: affine weights in
// groups of 64 with bf16 scales, rows as halves (Rounded). Equal to product_many().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// As product_few(), without `which`, for x.halves; items hold at most `together` pairs: kMmaRows or
/// kMmaFewRows, the latter for weights in two planes. `processors`: the device's.
void product_mma(Launcher& launcher, const FewProductParams& params, int together, int processors);

}  // namespace tercet::cuda
