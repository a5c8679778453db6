// The seam between those who want answers and those who compute them: token ids in, token ids out. A
// request's tokens and log-probabilities depend on the request alone, never on what else the engine does
// (CONTRACT.md).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/executor.h"
#include "ops/draw.h"
#include "sampling/sampling_params.h"
#include "sampling/token_constraint.h"

namespace tercet {

using RequestId = uint64_t;

struct EngineOptions {
  int32_t max_positions = 0;    // the context's limit: tokens of prompt and answer together
  int32_t max_sequences = 1;    // running at once; 1 to the executor's max_rows
  int32_t max_prompt_rows = 0;  // rows that prompts get in a step; 0: as many as the executor takes
  bool prefix_cache = true;     // requests take over what earlier ones computed
  std::vector<int32_t> eos_tokens;
  uint64_t seed = 0;  // the seeds of requests that bring none are drawn from it
};

struct PromptLogprobs {
  int32_t top = 0;  // the N most probable tokens beside each token of the prompt; 0 to kMaxTopLogprobs
};

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams params;  // stop strings apart: text is the caller's, who calls finish()
  std::optional<PromptLogprobs> prompt_logprobs;  // costs the use of cached prefixes
  std::unique_ptr<TokenConstraint> constraint;    // may be null
};

struct Submitted {
  RequestId id = 0;   // 1, 2, …
  uint64_t seed = 0;  // of the request, or chosen for it: below 2^53, so that JSON carries it
};

/// A token and what the model made of it, by the raw logits.
struct TokenInfo {
  int32_t token = -1;
  float logprob = 0.0F;
  std::vector<TokenLogprob> top;
};

enum class FinishReason : uint8_t {
  stop,       // an end token was drawn, or finish() said so
  length,     // max_tokens, or the context's limit
  cancelled,  // cancel()
  error,      // of this request alone
};
inline constexpr size_t kFinishReasons = 4;

struct Finish {
  FinishReason reason = FinishReason::stop;
  std::string error;  // where it is one
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, found in the cache
  int32_t answer_tokens = 0;  // drawn, the end token included
};

/// What a step did for one request. Every request gets exactly one event with `finish`, its last.
struct Event {
  RequestId id = 0;
  int32_t prompt_done = 0;         // tokens of the prompt that are computed or were cached; never falls
  std::vector<TokenInfo> prompt;   // where asked for: the next tokens of the prompt, from its second on, then
                                   // one entry without token (−1) for what follows the prompt
  std::optional<TokenInfo> token;  // drawn. With finish.reason stop it is the end token, and no text
  std::optional<Finish> finish;
};

struct EngineStats {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t pages = 0;  // of the KV cache: free + cached + active
  int32_t pages_free = 0;
  int32_t pages_cached = 0;  // hold prefixes, in use by no request
  int32_t pages_active = 0;

  // Totals since the start.
  uint64_t steps = 0;
  uint64_t rows = 0;           // computed, those computed again included
  uint64_t prompt_tokens = 0;  // of requests that began to run
  uint64_t cached_tokens = 0;  // of these, found in the cache
  uint64_t answer_tokens = 0;
  uint64_t preemptions = 0;
  std::array<uint64_t, kFinishReasons> finished{};  // by reason
};

/// submit(), finish(), cancel(), stats() and busy() may be called by any thread at any time, never block on a
/// step and take effect at the next one. step() and check_integrity() belong to one thread.
class Engine {
 public:
  /// The executor outlives the engine. Errors: options out of their bounds.
  static Result<std::unique_ptr<Engine>> create(EngineOptions options, Executor& executor);
  ~Engine();

  /// Errors, and nothing submitted: an empty prompt, tokens outside the vocabulary, parameters out of bounds,
  /// a prompt that leaves no room in context() for the tokens to be drawn at least.
  Result<Submitted> submit(Request request);

  /// Ends a request before the next step: with `stop` where a stop string was found in its text. Of a request
  /// that is unknown or has finished, nothing happens.
  void finish(RequestId id, FinishReason reason);
  void cancel(RequestId id) { finish(id, FinishReason::cancelled); }

  /// One step: admits, computes, draws. Blocks while the executor computes. Events in no promised order, at
  /// most one a request. Cheap where there is nothing to do.
  std::vector<Event> step();

  /// True while a submitted request has not finished.
  bool busy() const;
  EngineStats stats() const;

  /// Tokens that prompt and answer of a request may have together: max_positions, or what the KV cache holds.
  int32_t context() const;

  /// Stops the program where an invariant of CONTRACT.md is broken.
  void check_integrity() const;

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tercet
