// One model with its engine, for commands that answer one request at a time.
#pragma once

#include <functional>
#include <memory>

#include "apps/interrupt.h"
#include "apps/loaded_model.h"
#include "apps/text_model.h"
#include "engine/engine.h"

namespace tercet {

/// How a request ended and how long it took.
struct Outcome {
  Finish finish;
  uint64_t seed = 0;
  double prompt_seconds = 0;  // until the first token
  double answer_seconds = 0;  // from the first token to the last

  /// Tokens a second; 0 where there is nothing to divide.
  double prompt_rate() const;
  double answer_rate() const;
};

class Session {
 public:
  /// The context where the options give none: the model's, but no more than this many tokens, whose cache is
  /// reserved at the start.
  static constexpr int64_t kDefaultContext = 32768;

  static Result<Session> open(const ModelOptions& options, const Console& console);

  /// Runs one request to its end. `token` sees each drawn token that is text, and returns false to end the
  /// answer there. An interrupt (may be null) cancels. While the prompt is read, a bar shows how far.
  Result<Outcome> run(Request request, const std::function<bool(const TokenInfo&)>& token,
                      Interrupts* interrupts, const Console& console);

  const TextModel& text() const { return *text_; }
  const Engine& engine() const { return *engine_; }

 private:
  Session() = default;

  LoadedModel model_;
  std::unique_ptr<TextModel> text_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace tercet
