#include "apps/conversation.h"

#include <ctime>

#include "sampling/stop_matcher.h"

namespace tercet {
namespace {

/// Passes events on, the text of the answer through the stop strings.
class Filter {
 public:
  Filter(const std::vector<std::string>& stops, Answer& answer, const AnswerSink& sink)
      : matcher_(stops), answer_(answer), sink_(sink) {}

  void add(const std::vector<AnswerEvent>& events, bool done) {
    for (const AnswerEvent& event : events) {
      if (matcher_.stopped()) return;
      if (event.kind == AnswerEvent::Kind::content) {
        content(event.text, false);
      } else {
        if (event.kind != AnswerEvent::Kind::reasoning) content("", true);  // a call ends the text
        pass(event);
      }
    }
    if (done && !matcher_.stopped()) content("", true);
  }

  bool stopped() const { return matcher_.stopped(); }

 private:
  void content(std::string_view text, bool done) {
    const std::string certain = matcher_.add(text, done);
    if (!certain.empty()) pass({AnswerEvent::Kind::content, -1, certain});
  }
  void pass(const AnswerEvent& event) {
    answer_.add({&event, 1});
    sink_(event);
  }

  StopMatcher matcher_;
  Answer& answer_;
  const AnswerSink& sink_;
};

}  // namespace

Result<Reply> answer_chat(Session& session, const Json& request, const SamplingParams& params,
                          int32_t top_logprobs, const AnswerSink& sink,
                          const std::function<void(const TokenInfo&)>& token, Interrupts* interrupts,
                          const Console& console) {
  const TextModel& text = session.text();
  TERCET_TRY(const Prompt prompt, text.chat_template.render(request, text.tokenizer, std::time(nullptr)));
  const auto tools = request.find("tools");
  AnswerParser parser(text.tokenizer, text.tags, tools == request.end() ? Json() : *tools,
                      ends_in_thought(prompt.tokens, text.tags));
  Reply reply;
  Filter filter(params.stop, reply.answer, sink);
  Request engine_request;
  engine_request.prompt = prompt.tokens;
  engine_request.params = params;
  engine_request.params.top_logprobs = top_logprobs;
  const auto on_token = [&](const TokenInfo& info) {
    token(info);
    filter.add(parser.add({&info.token, 1}, AnswerEnd::none), false);
    return !filter.stopped();
  };
  TERCET_TRY(reply.outcome, session.run(std::move(engine_request), on_token, interrupts, console));
  if (!filter.stopped()) {
    const bool ended = reply.outcome.finish.reason == FinishReason::stop;
    filter.add(parser.add({}, ended ? AnswerEnd::stop : AnswerEnd::length), true);
  }
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
