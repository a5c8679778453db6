// product() of product.h by a warp an output: for weights of forms that no other fast kernel takes.
#pragma once

#include "backend/cuda/kernels/product.h"

namespace tercet::cuda {

/// As product(); groups of 32, 64 or 128.
void product_warps(Launcher& launcher, const ProductParams& params);

}  // namespace tercet::cuda
