// Products with float weights (Weights) in groups of 64, on fp16 tensor cores: whole numbers of 11 bits are
// fp16 numbers, and by rule 2 their sums over a group are below 2^24, exact in every order. Equal to
// product().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// As product_few(), without `which`, for x.numbers and x.units. `together`: rows or pairs that a block takes
/// at most: 8, 16 or 32, at the speed of the memory, or kFloatRows, for many. `processors`: the device's.
void product_floats(Launcher& launcher, const FewProductParams& params, int together, int processors);

}  // namespace tercet::cuda
