// A chat answer's tokens to its events, with the stop strings that end its text.
#pragma once

#include <string>
#include <vector>

#include "sampling/stop_matcher.h"
#include "text/answer_parser.h"

namespace tercet {

/// Stop strings end the text of the answer; they mean nothing in its thought and its calls. After a stop
/// there are no events.
class AnswerReader {
 public:
  /// `tokenizer` and `tags` outlive this. `tools`: the request's (or null).
  AnswerReader(const Tokenizer& tokenizer, const Tags& tags, Json tools, bool in_thought,
               const std::vector<std::string>& stops);

  std::vector<AnswerEvent> add(int32_t token);
  /// Nothing follows. To be called once.
  std::vector<AnswerEvent> end(AnswerEnd why);

  bool stopped() const { return matcher_.stopped(); }
  /// The string that stopped it.
  const std::string& stop() const { return matcher_.stop(); }
  /// Tokens so far that were part of a thought.
  int32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  std::vector<AnswerEvent> filtered(std::vector<AnswerEvent> events, bool done);
  void add_text(std::string_view text, bool done, std::vector<AnswerEvent>& out);

  const Tags* tags_;
  AnswerParser parser_;
  StopMatcher matcher_;
  bool in_thought_;
  int32_t reasoning_tokens_ = 0;
};

}  // namespace tercet
