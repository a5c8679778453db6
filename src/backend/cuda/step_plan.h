// Who computes what in a phase of a program (kernels/program.h): the blocks' shares of its products, worked
// out before it runs, so that blocks and warps look up what they would have to find out between two barriers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/kernels/program.h"

namespace tercet::cuda {

struct PhasePlan {
  int32_t share_bytes = 0;  // of each block
  std::vector<uint8_t> shares;
};

/// Of a product in a phase: its items, and what each of them costs and takes.
struct ShareNeed {
  int64_t items = 0;
  int64_t cost = 0;    // in the unit of the phase's works
  int64_t bytes = 0;   // of a block's share
  int64_t floats = 0;  // of kProgramSums
};
ShareNeed share_need(int64_t items, int64_t cost, int64_t item_jobs, int64_t rows);

/// Bytes that a block's share of a phase of these products has at most, and its rounds.
int64_t most_share_bytes(std::span<const ShareNeed> works, int32_t blocks);
int64_t most_share_rounds(std::span<const ShareNeed> works, int32_t blocks);
inline bool shares_fit(std::span<const ShareNeed> works, int32_t blocks) {
  return most_share_bytes(works, blocks) <= kShareBytes && most_share_rounds(works, blocks) <= kShareRounds;
}

/// The shares of a phase, which must fit. Items go to blocks in order, each block getting the same cost, as
/// far as items are whole.
PhasePlan plan_phase(const Phase& phase, int32_t blocks);

/// The shares of all phases of a program, those of phases alike (as layers have them) once.
struct ProgramPlan {
  struct Place {
    int64_t first = 0;  // byte of `shares`
    int32_t share_bytes = 0;
  };
  std::vector<Place> places;  // [phases]
  std::vector<uint8_t> shares;
};
ProgramPlan plan_program(std::span<const Phase> phases, int32_t blocks);

}  // namespace tercet::cuda
