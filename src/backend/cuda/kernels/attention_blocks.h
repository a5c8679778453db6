// Attention of rows one by one: a thread block a row, KV head and span of keys, whose up to kMaxSharing query
// heads share the reads; spans are folded by a second kernel.
#pragma once

#include <vector_types.h>

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

/// Rows of a sequence that attend one by one: the first, among the rows of one call, and the spans of all
/// rows before (a sequence's rows counting as if each had as many as the last). Read side by side, so that
/// they share the second cache.
struct SpanRows {
  int32_t first, spans_before;
};

constexpr int kPartial = kHead + 4;  // floats of a span's result: a multiple of 16 bytes
struct BlocksParams {
  AttentionParams rows;
  Queries queries;         // of all rows
  float* partials;         // [rows.rows][heads][spans][kHead]: O
  float2* sizes;           // [rows.rows][heads][spans]: m, l
  const int32_t* list;     // which of the rows, rows.rows of them; null: rows first, first + 1, …
  const SpanRows* groups;  // [group_count + 1], the last one: {rows.rows, spans of all}
  int32_t first, group_count;
  int32_t spans;   // of the longest row, or more
  int32_t leaves;  // of `rounded`
  int32_t processors;
  int32_t zero;
  Rounded rounded;  // halves, or null: the result rounded for the product that follows, too, where its leaves
                    // have at most kFoldedLeaf numbers
};
void attention_blocks(Launcher& launcher, const BlocksParams& params);

}  // namespace tercet::cuda
