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

  /// Waits for the results. `failed`: of the step's rows, on the device.
  std::vector<RowResult> run(StepInput& input, const uint8_t* failed, Rows logits,
                             std::span<const RowOutput> outputs);

 private:
  Launcher& launcher_;
  Scratch parts_, all_;
  HostScratch results_;
};

}  // namespace tercet::cuda
