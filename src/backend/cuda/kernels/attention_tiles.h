// Attention of many rows of a sequence at a time by wgmma (sm_90a): a block a tile of rows and a KV head,
// which shares the reads of its keys and values.
#pragma once

#include "backend/cuda/kernels/attention.h"

namespace tercet::cuda {

/// Rows of a sequence, one after another.
struct AttentionTile {
  int32_t first, count;
};

/// Rows that a tile may have where so many query heads share a KV head (at most kMaxSharing).
constexpr int tile_rows(int sharing) { return 3 * (64 / sharing); }

struct TileParams {
  AttentionParams rows;
  const AttentionTile* tiles;
  int32_t count, zero;
};
void attention_tiles(Launcher& launcher, const TileParams& params);

}  // namespace tercet::cuda
