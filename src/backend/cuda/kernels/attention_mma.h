// As attention_tiles(), by mma.sync, which every generation has from sm_80 on.
#pragma once

#include "backend/cuda/kernels/attention_tiles.h"

namespace tercet::cuda {

/// Rows that a tile may have where so many query heads share a KV head (at most kMaxSharing).
constexpr int mma_tile_rows(int sharing) { return 2 * (64 / sharing); }

void attention_mma(Launcher& launcher, const TileParams& params);

}  // namespace tercet::cuda
