// Runs the same tokens in different ways, for tests that expect the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/local_executor.h"
#include "model/hy_v3/config.h"
#include "weights/checkpoint.h"

namespace tercet::verify {

/// A checkpoint and what it says of itself.
struct TestModel {
  hy_v3::Config config;
  Checkpoint checkpoint;
};

/// A folder, or a synthetic model, made on `threads` threads. Stops the program on an error.
TestModel open_test_model(const std::string& model, int threads = 2);

struct Placement {
  int stages = 1;
  int shards = 1;
  int threads = 2;
  int32_t max_rows = 512;
  int32_t pages = 64;
  bool mtp = false;
};

std::unique_ptr<LocalExecutor> load(const TestModel& model, const Placement& placement,
                                    const std::function<std::unique_ptr<Ops>(int)>& make_ops);

/// Tokens that look random, the same on every machine.
std::vector<int32_t> made_up_tokens(int32_t count, int32_t vocabulary, uint64_t key);

/// Log-probabilities of one sequence, [position][vocabulary], of the model and of its MTP layer.
struct Scores {
  std::vector<float> main;
  std::vector<float> mtp;

  bool operator==(const Scores&) const = default;
};

/// Scores the sequences side by side: each step takes up to `chunk` tokens of every sequence that has any
/// left, from its own pages, which are handed out in an order that no two sequences share.
std::vector<Scores> score_together(Executor& executor, const std::vector<std::vector<int32_t>>& sequences,
                                   int32_t chunk, bool mtp = false);

/// A sequence whose first `prefix` tokens were computed by another one, which then went on differently: its
/// last, partly filled page is copied, as the engine does for a cached prefix. Returns the rows after
/// `prefix`.
std::vector<float> score_after_prefix(Executor& executor, const std::vector<int32_t>& tokens, int32_t prefix);

/// Rows [first, …) of a sequence's main scores.
std::vector<float> rows_from(const Scores& scores, int32_t first, int64_t vocabulary);

}  // namespace tercet::verify
