// Products of experts that have some rows each, where their weights' way from memory counts: each warp
// asks for its own ahead, into registers, and multiplies them by mma.sync (fp16). Affine weights in groups of
// 64 with bf16 scales, rows as halves (Rounded). Equal to product_many().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// As product_few() with `items`, for x.halves; they hold at most `together` pairs, 8 or 16. Needs
/// batch_shared() bytes of shared memory.
void product_batch(Launcher& launcher, const FewProductParams& params, int together);

}  // namespace tercet::cuda
