// write_kv() of attention.h by a warp a row and head, with the queries rounded for attention_blocks() as
// well.
#pragma once

#include "backend/cuda/kernels/attention_blocks.h"

namespace tercet::cuda {

struct WriteKvAndQueriesParams {
  WriteKvParams write;
  Queries queries;
};
void write_kv_and_queries(Launcher& launcher, const WriteKvAndQueriesParams& params);

}  // namespace tercet::cuda
