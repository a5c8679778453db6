// Products of experts that have some rows each, where their weights' way from memory counts: each warp
// asks for its own ahead, into registers, and multiplies them by mma.sync (fp16). Affine weights in groups of
// 64 with bf16 scales, rows as halves (Rounded). Equal to product_many().
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// As product_few() with `items`, for x.halves; they hold at most kBatchPairs pairs. Needs batch_shared()
/// bytes of shared memory; of `warps`, 4 or 8, of a block each has two tiles.
void product_batch(Launcher& launcher, const FewProductParams& params, int warps);

/// The leaves' sums of a dense product of weights in one plane, without SwiGLU, leaf_stride apart
/// (LeafSumParams), by the same code; blocks have kLeafRows rows and a leaf each. Needs leaf_shared() bytes
/// of shared memory.
void product_leaves(Launcher& launcher, const FewProductParams& params);

}  // namespace tercet::cuda
