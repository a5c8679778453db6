// A conversation with a model: its messages, and one answer after another.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "apps/session.h"
#include "text/answer_parser.h"
#include "text/json.h"

namespace tercet {

/// One answer, as the request's message has it afterwards.
struct Reply {
  Answer answer;
  Outcome outcome;
};

/// Pieces of the answer as they come. An error ends the answer.
using AnswerSink = std::function<Result<void>(const AnswerEvent&)>;

/// Answers an OpenAI-shaped chat request (messages, tools, reasoning_effort, …). Stop strings end the text of
/// the answer, not its thought.
Result<Reply> answer_chat(Session& session, const Json& request, const SamplingParams& params,
                          int32_t top_logprobs, const AnswerSink& sink,
                          const std::function<void(const TokenInfo&)>& token, Interrupts* interrupts,
                          const Console& console);

/// The assistant's message for the history: content, reasoning_content, tool_calls.
Json message_of(const Answer& answer);

}  // namespace tercet
