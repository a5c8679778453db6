// From an accepted request to its answer: what the engine tells, handed to who spells it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "serve/api_error.h"
#include "serve/engine_driver.h"
#include "serve/http.h"

namespace tercet {

/// What a protocol makes of the updates of one submission. Called on the exchange's sequence of tasks.
/// begin() comes first; end() or fail() last, unless the client left.
class AnswerConsumer {
 public:
  virtual ~AnswerConsumer() = default;

  /// The requests are accepted; `submitted` has one entry for each part.
  virtual void begin(const std::vector<Submitted>& submitted) = 0;
  /// Never one whose finish is an error or a cancellation. False: the part's answer ends here, though the
  /// model would go on; what still comes of it is to be disregarded, but for its finish.
  virtual bool add(Update& update) = 0;
  /// All parts have finished.
  virtual void end() = 0;
  virtual void fail(const ApiError& error) = 0;
};

/// Submits `parts` and feeds `consumer` until all have finished; when the client leaves, they are cancelled.
/// An error: nothing was submitted, and the consumer is not told. On the exchange's sequence.
ApiResult<void> generate(EngineDriver& driver, const std::shared_ptr<Exchange>& exchange,
                         std::vector<Request> parts, std::unique_ptr<AnswerConsumer> consumer);

/// What was read and drawn for an answer, over all parts.
struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt
  int32_t completion_tokens = 0;
  int32_t reasoning_tokens = 0;  // of the completion
};

/// Counts and times of the parts of one answer.
class Tally {
 public:
  /// `choices`: parts in a row that have the same prompt, which counts once.
  Tally(size_t parts, size_t choices) : parts_(parts), choices_(choices) {}

  /// The update's token counts.
  void add(const Update& update);
  void add_finish(const Update& update, int32_t reasoning_tokens);

  Usage usage() const;
  /// As OpenAI spells it.
  Json usage_json() const;
  /// As llama.cpp spells them.
  Json timings_json() const;
  /// For the access log.
  void note(Exchange& exchange) const;

 private:
  struct Part {
    int32_t prompt = 0, cached = 0, drawn = 0, reasoning = 0;
    Clock::time_point started, first, last;
  };
  std::vector<Part> parts_;
  size_t choices_;
};

}  // namespace tercet
