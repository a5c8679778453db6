// Spellings that OpenAI's endpoints share.
#pragma once

#include <string>
#include <vector>

#include "serve/generation.h"
#include "serve/service.h"

namespace tercet {

/// What every object of one answer begins with.
struct AnswerHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970

  static AnswerHead make(std::string_view prefix);
  /// {"id", "object", "created", "model", "system_fingerprint"}
  Json json(std::string_view object, const ServedModel& model) const;
};

/// The chunks of one stream, which all begin alike: that is written once, since chunks come with every token.
class StreamHead {
 public:
  explicit StreamHead(const Json& head);
  /// A chunk with `choices` and the members of `more`, as an event.
  std::string event(const Json& choices, const Json& more) const;

 private:
  std::string text_;  // of the event, up to the choices
};

/// chat.completion's `logprobs`: {"content": […]}.
Json chat_logprobs(const std::vector<TokenInfo>& tokens, const Tokenizer& tokenizer);

/// "data: …\n\n"
std::string sse_data(const Json& value);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
/// A comment that tells how far the prompt is read.
std::string sse_progress(int32_t done, size_t total);

/// A token's text; what is no UTF-8 is replaced.
std::string token_text(int32_t token, const Tokenizer& tokenizer);

}  // namespace tercet
