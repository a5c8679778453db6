// Log-probabilities and draws: on the device where a row asks for no more than kernels know, else on the host
// with the reference's own code.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/runtime/memory.h"
#include "ops/ops.h"

namespace tercet::cuda {

class Evaluation {
 public:
  Evaluation(Launcher& launcher, int64_t& held);

  /// Waits for the results. Rows that failed before are not this function's to know.
  std::vector<RowResult> run(StepInput& input, Rows logits, std::span<const RowOutput> outputs);

 private:
  Launcher& launcher_;
  Scratch parts_, results_, all_;
};

}  // namespace tercet::cuda
