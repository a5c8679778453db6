#include "apps/conversation.h"

#include <ctime>

#include "serve/answer_reader.h"

namespace tercet {

Result<Reply> answer_chat(Session& session, const Json& request, const SamplingParams& params,
                          int32_t top_logprobs, const AnswerSink& sink,
                          const std::function<void(const TokenInfo&)>& token, Interrupts* interrupts,
                          const Console& console) {
  const TextModel& text = session.text();
  TERCET_TRY(const Prompt prompt, text.chat_template.render(request, text.tokenizer, std::time(nullptr)));
  const Json* tools = find_member(request, "tools");
  AnswerReader reader(text.tokenizer, text.tags, tools == nullptr ? Json() : *tools,
                      ends_in_thought(prompt.tokens, text.tags), params.stop);
  Reply reply;
  Result<void> passed;
  const auto pass = [&](const std::vector<AnswerEvent>& events) {
    reply.answer.add(events);
    for (const AnswerEvent& event : events) {
      if (passed) passed = sink(event);
    }
  };
  Request engine_request;
  engine_request.prompt = prompt.tokens;
  engine_request.params = params;
  engine_request.params.top_logprobs = top_logprobs;
  const auto on_token = [&](const TokenInfo& info) {
    token(info);
    pass(reader.add(info.token));
    return passed && !reader.stopped();
  };
  TERCET_TRY(reply.outcome, session.run(std::move(engine_request), on_token, interrupts, console));
  const bool ended = reply.outcome.finish.reason == FinishReason::stop;
  pass(reader.end(ended ? AnswerEnd::stop : AnswerEnd::length));
  TERCET_TRY_VOID(passed);
  return reply;
}

Json message_of(const Answer& answer) {
  Json message{{"role", "assistant"}, {"content", answer.content}};
  if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  if (answer.calls.empty()) return message;
  Json calls = Json::array();
  for (const Answer::Call& call : answer.calls) {
    Json function{{"name", call.name}, {"arguments", call.arguments}};
    calls.push_back(
        {{"id", fmt::format("call_{}", calls.size())}, {"type", "function"}, {"function", function}});
  }
  message["tool_calls"] = calls;
  return message;
}

}  // namespace tercet
