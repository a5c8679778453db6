// Who computes what in a phase of a program (kernels/program.h): the blocks' shares of its products, worked
// out before it runs, so that blocks and warps look up what they would have to find out between two barriers.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/kernels/program.h"

namespace tercet::cuda {

struct PhasePlan {
  int32_t share_bytes = 0;  // of each block
  std::vector<uint8_t> shares;
};

/// Bytes that a block's share of a work has at most: of items of so many jobs each, and of so many rows.
int64_t share_bytes(int64_t items, int64_t item_jobs, int64_t rows, int32_t blocks);

/// The shares of a phase whose works have shares of kShareBytes at most, all together. Items go to blocks in
/// order, each block getting the same cost, as far as items are whole.
PhasePlan plan_phase(const Phase& phase, int32_t blocks);

}  // namespace tercet::cuda
