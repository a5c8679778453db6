// Attention of rows one by one: a warp a row, KV head and block of 64 keys, or span of them, whose up to
// kMaxSharing query heads share the reads; partial results are folded by a second kernel.
#pragma once

#include "backend/cuda/kernels/attention.h"

namespace tercet::cuda {

/// Queries rounded by rule 8, fp16 divided by 2^E, [rows][heads][128], dimension 16·s + 8·h + 2·t + e at 32·t
/// + 4·s + 2·h + e: what a lane of an mma fragment holds lies together. powers: 2^E, [rows][heads]; −1 where
/// a query failed, which then is zeros.
struct Queries {
  uint16_t* halves;
  float* powers;
};
struct RoundQueriesParams {
  const float* qkv;
  Queries queries;
  int64_t ld;
  int32_t rows, heads;
};
void round_queries(Launcher& launcher, const RoundQueriesParams& params);

constexpr int kPartial = kHead + 2;
struct BlocksParams {
  AttentionParams rows;
  Queries queries;      // of all rows
  float* partials;      // [rows.rows][heads][blocks / each][kPartial]
  const int32_t* list;  // which of the rows, rows.rows of them; null: rows first, first + 1, …
  int32_t first;
  int32_t blocks;   // of the longest row, or more, a multiple of `each`
  int32_t each;     // blocks that a warp takes one after another: 1 or a whole span, kSpanBlocks
  int32_t leaves;   // of `rounded`
  Rounded rounded;  // halves, or null: of whole spans the result rounded for the product that follows, too,
                    // where its leaves have at most kFoldedLeaf numbers
};
void attention_blocks(Launcher& launcher, const BlocksParams& params);

}  // namespace tercet::cuda
