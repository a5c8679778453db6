// Programs of steps of few rows (kernels/program.h). Steps repeat: as long as the operations asked for are
// those of a program that ran before, nothing is made; it runs again.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "backend/cuda/packing.h"
#include "backend/cuda/runtime/memory.h"
#include "backend/cuda/select/device.h"
#include "backend/cuda/step_call.h"
#include "backend/cuda/step_program.h"
#include "ops/ops.h"

namespace tercet::cuda {

class StepPrograms {
 public:
  StepPrograms(Launcher& launcher, int64_t& held, const DeviceTraits& device);

  // Each takes an operation, or returns false and has taken nothing.
  bool norm(Rows x, Rows z, Vector weight, float eps, Rows h);
  bool linear(uint8_t* failed, Rows h, const PackedLinear& weights, Rows y);
  bool gate_up(uint8_t* failed, Rows h, const PackedLinear& weights, Rows a);
  bool route(uint8_t* failed, Rows h, const PackedLinear& router, Vector bias, RouterParams params,
             Routes routes);
  bool experts_gate_up(uint8_t* failed, Rows h, const Routes& routes, const PackedExperts& experts, Rows a);
  bool experts_down(uint8_t* failed, Rows a, const Routes& routes, const PackedExperts& experts, Rows shared,
                    Rows z);
  bool write_kv(const WriteKvAndQueriesParams& params);
  /// `single`: no two rows are of one sequence.
  bool attention(const AttentionParams& params, const Queries& queries, int32_t last_position, bool single);

  /// Queues what was taken; what is left is for kernels of its own.
  StepProgram::Left finish();

 private:
  struct Asked {
    Call call;
    bool taken;
  };
  struct Known {
    std::vector<Asked> asked;
    StepProgram::Left left;
    int32_t count = 0;                // of phases
    DeviceBytes memory;               // the phases as blocks read them, then their shares
    const uint8_t* shares = nullptr;  // of the first
    int32_t share_bytes = 0;
    RowPlaces places{};     // of the rows that attend
    int32_t attending = 0;  // how many
    Known* then = nullptr;  // which ran after it the last time
  };

  bool few(int64_t rows) const;
  template <class Args>
  bool ask(const Args& args);
  /// A call that is not what now_ has.
  bool ask_other(const Call& call);
  /// A program of which the calls so far are the first, and which goes on with `call` or, where that is null,
  /// ends.
  Known* find(const Call* call);
  bool goes_on(const Known& known, const Call* call) const;
  /// Has what was asked so far taken.
  void draft();
  bool take(const Call& call);
  Known make(std::vector<Asked> asked, StepProgram::Made made) const;
  StepProgram::Left run(Known& known);

  Launcher& launcher_;
  int64_t& held_;
  const DeviceTraits device_;
  StepProgram program_;
  DeviceBytes arrived_;
  std::deque<Known> known_;              // the oldest first
  std::array<const void*, 4> memory_{};  // that they use
  Known* last_ = nullptr;                // that ran

  // What is asked for is a known program's beginning …
  Known* now_ = nullptr;
  size_t at_ = 0;  // calls of it
  // … or these, which program_ has taken.
  std::vector<Asked> asked_;
  bool whole_ = true;  // all that it has taken
};

}  // namespace tercet::cuda
