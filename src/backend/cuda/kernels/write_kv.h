// write_kv() of attention.h by a warp a row and head, with the queries rounded for attention_blocks() as
// well.
#pragma once

#include "backend/cuda/kernels/attention_blocks.h"

namespace tercet::cuda {

struct WriteKvAndQueriesParams {
  WriteKvParams write;
  Queries queries;
};
/// With `leaves`, qkv is first made of so many sums, leaf_stride apart from `parts` on, rows write.ld apart
/// (LeafSumParams).
struct WriteKvOfLeavesParams {
  WriteKvAndQueriesParams both;
  const float* parts;
  int64_t leaf_stride;
  int32_t leaves, zero;
};
void write_kv_and_queries(Launcher& launcher, const WriteKvOfLeavesParams& params);

}  // namespace tercet::cuda
