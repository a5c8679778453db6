// Collects the operations of a step of few rows into a program (kernels/program.h): each goes into the last
// phase, or, where it needs what that one makes, into a new one.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <vector>

#include "backend/cuda/kernels/program.h"
#include "backend/cuda/runtime/memory.h"
#include "backend/cuda/select/device.h"
#include "backend/cuda/step_call.h"
#include "backend/cuda/step_plan.h"
#include "ops/ops.h"

namespace tercet::cuda {

class StepProgram {
 public:
  StepProgram(Launcher& launcher, int64_t& held, const DeviceTraits& device);

  /// Takes an operation, or returns false and has taken nothing. What it does follows from the calls since
  /// the last finish() and from memory().
  bool take(const Call& call);

  /// A norm that was taken and that no operation has asked for yet.
  struct Norm {
    Rows x;
    Vector weight;
    float eps = 0.0F;
    Rows h;
  };
  /// A choice of experts likewise.
  struct Left {
    std::optional<Norm> norm;
    std::optional<ChooseParams> choose;
  };
  struct Made {
    std::vector<Phase> phases;
    Left left;
    RowPlaces places;   // of the rows that attend
    int32_t attending;  // how many
  };
  /// What was taken, and what is left for kernels of its own.
  Made finish();

  /// What phases point to beside what calls do. It may grow, which waits for all that was queued.
  std::array<const void*, 4> memory();

 private:
  /// Memory that an operation reads or writes.
  struct Range {
    const void* first = nullptr;
    const void* end = nullptr;
  };
  class Ranges {
   public:
    Ranges() = default;
    Ranges(std::initializer_list<Range> ranges);
    void add(const Range& range);
    void add(const Ranges& others);
    bool meet(const Ranges& others) const;

   private:
    std::array<Range, 24> ranges_;
    size_t count_ = 0;
  };
  /// Of the last phase, which may grow.
  struct Draft {
    Ranges reads, writes;
    const float* of[kPhaseSources] = {};  // the rows that its sources stand for
    int32_t step[kPhaseSources] = {};     // distance of these rows in the source
    int32_t shared = 0;                   // bytes of its sources
    std::vector<ShareNeed> products;
    bool alone = false;  // takes no more
  };
  /// Rows whose rounded form lies in planes_ and units_.
  struct Kept {
    const float* h = nullptr;
    int64_t rows = 0, k = 0;
    int32_t parts = 1;
  };
  /// Where a phase holds rows: every `step`-th of a source.
  struct Place {
    int32_t source, step;
  };

  static Range range(Rows rows) { return {rows.data, rows.data + rows.rows * rows.cols}; }
  static Range routes_range(const int32_t* experts, int64_t count) { return {experts, experts + count}; }
  bool norm(Rows x, Rows z, Vector weight, float eps, Rows h);
  bool linear(uint8_t* failed, Rows h, const Weights& w, Rows y);
  bool gate_up(uint8_t* failed, Rows h, const Weights& w, Rows a);
  bool route(Rows h, const Weights& w, ChooseParams choice);
  bool experts_gate_up(uint8_t* failed, Rows h, const Routes& routes, const ExpertWeights& experts, Rows a);
  bool experts_down(uint8_t* failed, Rows a, const Routes& routes, const ExpertWeights& experts, Rows shared,
                    Rows z);
  bool write_kv(const WriteKvAndQueriesParams& params);
  bool attention(const AttentionCall& call);

  /// Whether a pending norm is of other rows, or of more.
  bool other_norm(Rows h) const { return norm_ && (norm_->h.data != h.data || norm_->h.rows != h.rows); }
  bool fits(const Weights& w, int64_t rows) const;
  /// What an operation asks of its phase.
  struct Need {
    Ranges reads, writes;
    std::optional<ShareNeed> product = {};
    int32_t shared = 0;  // bytes of a source; 0: none
  };
  /// Nothing where the blocks' shares are too large even in a phase of its own.
  std::optional<ShareNeed> need_of(const Weights& w, int64_t items, int32_t slots, int64_t rows) const;
  /// Whether the last phase can take an operation.
  bool joins(const Need& need) const;
  /// Makes the last phase one that does.
  void phase_for(const Need& need);
  Place add_source(const Source& source, const float* of, int32_t step);
  /// A phase that has the rows h, with what their rounding leaves where parts is 2, and takes an operation
  /// that needs this besides.
  Place place(uint8_t* failed, Rows h, int32_t parts, Need need);
  Work& add_work(WorkKind kind, int64_t items, int64_t cost, bool early);
  ProductWork& add_product(const Place& at, WorkKind kind, const Weights& w, int64_t rows, int64_t items,
                           int32_t slots, bool swiglu, bool early);

  const DeviceTraits device_;
  std::vector<Phase> phases_;
  Draft draft_;
  std::optional<Norm> norm_;
  std::optional<ChooseParams> choose_;
  const int32_t* chosen_in_ = nullptr;  // routes whose experts the program's blocks hold
  Kept kept_;
  RowPlaces places_{};     // of the rows that attend in the program
  int32_t attending_ = 0;  // how many
  Scratch planes_, units_, logits_, partials_;
  DeviceBytes tickets_;
};

}  // namespace tercet::cuda
