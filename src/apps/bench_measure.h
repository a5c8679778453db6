// What `tercet bench` measures, and how: steps handed straight to an executor.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/executor.h"
#include "ops/profiled_ops.h"

namespace tercet {

/// Either a prompt of `prompt` tokens is read, or `generate` tokens are drawn by each of `parallel`
/// sequences, after `depth` tokens that the cache holds already.
struct BenchTest {
  int32_t prompt = 0;
  int32_t generate = 0;
  int32_t depth = 0;
  int32_t parallel = 1;

  /// As llama-bench has it: pp512, tg128, "tg128 @ d1024", "tg128 x8".
  std::string name() const;
  /// Of one repetition.
  int64_t tokens() const { return prompt > 0 ? prompt : int64_t{generate} * parallel; }
  /// Of the KV cache.
  int64_t pages() const;
};

/// One for each rank of the executor; a deque, since the ranks' operations keep references.
using RankProfiles = std::deque<Profile>;

struct BenchResult {
  BenchTest test;
  std::vector<double> rates;  // tokens a second of each repetition
  int64_t steps = 0;          // of one repetition
  double bytes = 0;           // a token, counted: weights of the experts really chosen, and the cache
  double products = 0;        // a token
  Profile profile;  // of one repetition; seconds and kernels if asked for, from one that was timed so
  double profile_seconds = 0;  // of that one

  double mean() const;
  double deviation() const;  // of the sample; 0 for one repetition
};

struct BenchRun {
  Executor& executor;
  RankProfiles& profiles;
  int32_t chunk = 512;  // tokens of a prompt in one step
  int32_t repetitions = 5;
  bool profile = false;  // by part, in a repetition more
  std::function<void(int64_t tokens)> done;
};

/// Fills the cache to `depth`, runs once to warm up, then `repetitions` times.
///
/// Timed: a repetition as a whole, that is all steps, making their plans, and drawing. The prompt's last
/// token and every decoded one get logits over the whole vocabulary, their log-probability and a greedy
/// draw, which is the next input. Not timed: loading, filling, the warm-up. Prompts are random tokens.
/// Repetitions compute the same bits, so that what the warm-up counted is true of all. The profile has two
/// more of them, the second for its times: a device's steps with marks between the parts are other graphs.
/// Error: the model met a value that is not finite.
Result<BenchResult> measure(const BenchRun& run, const BenchTest& test);

}  // namespace tercet
