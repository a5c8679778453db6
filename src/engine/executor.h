// The seam between scheduling and arithmetic: a plan of one step goes down, rows' results come up.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/batch.h"
#include "ops/draw.h"

namespace tercet {

/// One step, complete in itself: every rank computes its part from this and nothing else.
struct StepPlan {
  std::vector<PageCopy> copies;  // done first, in order
  Batch batch;
  std::vector<RowOutput> outputs;  // ordered by row; a row may occur more than once

  // Where not empty, the MTP layer runs too: next[r] is the token after row r's (any, where there is none:
  // that row's results then mean nothing), and mtp_outputs tell of the token after that.
  std::vector<int32_t> next;  // [batch.rows()]
  std::vector<RowOutput> mtp_outputs;
};

struct StepResult {
  std::vector<RowResult> rows;      // in the order of plan.outputs
  std::vector<RowResult> mtp_rows;  // in the order of plan.mtp_outputs
  std::vector<uint8_t> failed;      // [batch.sequences]: 1 where a row of the sequence met a non-finite value
                                    // (rule 0). Its keys and values are then worthless: its request ends.
};

class Executor {
 public:
  virtual ~Executor() = default;

  /// What a row becomes depends on its tokens before and on nothing
  /// else in the plan. Blocks until done; called by one thread.
  virtual StepResult run(const StepPlan& plan) = 0;

  virtual int32_t vocabulary() const = 0;
  /// Pages of the KV cache; page ids are 0 … pages() − 1.
  virtual int32_t pages() const = 0;
  /// The most rows a plan may have.
  virtual int32_t max_rows() const = 0;
};

}  // namespace tercet
