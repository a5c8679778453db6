// For tests: an executor whose logits are a hash of the tokens before, and what an engine must make of it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/executor.h"

namespace tercet {

/// Reads the earlier tokens through the batch's pages only, as attention does, and fails the running test
/// where those pages do not hold one unbroken sequence, or where a plan breaks its own rules.
class FakeExecutor final : public Executor {
 public:
  FakeExecutor(int32_t pages, int32_t max_rows, int32_t vocabulary = 50);

  StepResult run(const StepPlan& plan) override;
  int32_t vocabulary() const override { return vocabulary_; }
  int32_t pages() const override { return static_cast<int32_t>(slots_.size()) / kPageTokens; }
  int32_t max_rows() const override { return max_rows_; }

  /// A row of this token fails its sequence, as a value that is not finite does. −1: none.
  int32_t failing_token = -1;
  /// Called in every step, where not empty.
  std::function<void()> during_run;
  /// The plan of the last step.
  StepPlan last;

  static uint64_t hash(uint64_t before, int32_t token);
  static std::vector<float> logits(uint64_t hash, int32_t vocabulary);

 private:
  struct Slot {
    int32_t token = -1;
    uint64_t hash = 0;  // of the tokens up to this one
  };

  void check_plan(const StepPlan& plan) const;
  Slot& slot(const SequenceRows& sequence, int32_t position);

  const int32_t vocabulary_;
  const int32_t max_rows_;
  std::vector<Slot> slots_;
};

struct TokenAnswer {
  std::vector<TokenInfo> prompt;
  std::vector<TokenInfo> tokens;
  FinishReason reason = FinishReason::error;
};

/// What the request's answer must be, worked out token by token without an engine. No constraint.
TokenAnswer expected_answer(const Request& request, uint64_t seed, std::span<const int32_t> eos_tokens,
                            int32_t context, int32_t vocabulary, int32_t failing_token = -1);

/// A copy without constraint, since that has one owner.
Request copy_of(const Request& request);

bool same_bits(const TokenInfo& a, const TokenInfo& b);

}  // namespace tercet
