#include "serve/chat_consumer.h"
#include "serve/endpoints.h"
#include "serve/ids.h"
#include "serve/openai_json.h"

namespace tercet {
namespace {

void set_reasoning(Json& message, const std::string& text, const ServiceOptions& options) {
  if (options.reasoning_content) message["reasoning_content"] = text;
  if (options.reasoning) message["reasoning"] = text;
}

/// The answer as one object.
class WholeChat final : public ChatConsumer {
 public:
  using ChatConsumer::ChatConsumer;

  void end() override {
    Json body = head_.json("chat.completion", service().model);
    Json choices = Json::array();
    for (size_t i = 0; i < parts().size(); ++i) choices.push_back(choice(i));
    body["choices"] = std::move(choices);
    body["usage"] = tally().usage_json();
    body["timings"] = tally().timings_json();
    body["seed"] = seed();
    if (!request().warnings.empty()) body["warnings"] = request().warnings;
    tally().note(exchange());
    respond_json(exchange(), body);
  }

  void fail(const ApiError& error) override { exchange().respond(openai_error_response(error)); }

 private:
  Json choice(size_t index) {
    const ChatPart& part = parts()[index];
    return {{"index", index},
            {"message", message(part.answer)},
            {"logprobs", request().logprobs ? chat_logprobs(told(index), service().model.tokenizer) : Json()},
            {"finish_reason", part.finish_reason()},
            {"stop_reason", stop_reason(part)}};
  }

  Json message(const Answer& answer) const {
    const bool only_calls = answer.content.empty() && !answer.calls.empty();
    Json message{
        {"role", "assistant"}, {"content", only_calls ? Json() : Json(answer.content)}, {"refusal", nullptr}};
    if (!answer.reasoning.empty()) set_reasoning(message, answer.reasoning, service().options);
    if (answer.calls.empty()) return message;
    Json calls = Json::array();
    for (const Answer::Call& call : answer.calls) {
      calls.push_back({{"id", random_id("call_")},
                       {"type", "function"},
                       {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    message["tool_calls"] = std::move(calls);
    return message;
  }

  AnswerHead head_ = AnswerHead::make("chatcmpl-");
};

/// The answer as it comes.
class ChatStream final : public ChatConsumer {
 public:
  using ChatConsumer::ChatConsumer;

  void begin(const std::vector<Submitted>& submitted) override {
    ChatConsumer::begin(submitted);
    exchange().begin_stream({});
    for (size_t i = 0; i < parts().size(); ++i) {
      Json more = Json::object();
      if (i == 0) {
        more["seed"] = seed();
        if (!request().warnings.empty()) more["warnings"] = request().warnings;
      }
      tell(choice(i, {{"role", "assistant"}, {"content", ""}}), std::move(more));
    }
  }

  void end() override {
    if (request().stream.include_usage) {
      exchange().write(
          head_.event(Json::array(), {{"usage", tally().usage_json()}, {"timings", tally().timings_json()}}));
    }
    tally().note(exchange());
    exchange().write(std::string(kSseDone));
    exchange().end();
  }

  void fail(const ApiError& error) override {
    exchange().note("error", to_json_text(error.message));
    exchange().write(sse_data(openai_error(error)));
    exchange().write(std::string(kSseDone));
    exchange().end();
  }

 protected:
  void on_progress(int32_t done) override {
    exchange().write(sse_progress(done, request().prompt.tokens.size()));
  }

  void on_events(size_t part, const std::vector<AnswerEvent>& events) override {
    for (const AnswerEvent& event : events) {
      Json next = delta(event);
      if (!next.is_null()) tell(choice(part, std::move(next)));
    }
  }

  void on_part_end(size_t part) override {
    Json last = choice(part, Json::object());
    last["finish_reason"] = parts()[part].finish_reason();
    last["stop_reason"] = stop_reason(parts()[part]);
    bool all = true;
    for (const ChatPart& other : parts()) all = all && other.ended;
    Json more = Json::object();
    if (all) more["timings"] = tally().timings_json();
    tell(std::move(last), std::move(more));
  }

 private:
  void tell(Json choice, Json more = Json::object()) {
    if (request().stream.include_usage) more["usage"] = nullptr;
    Json choices = Json::array();
    choices.push_back(std::move(choice));
    exchange().write(head_.event(choices, more));
  }

  Json choice(size_t part, Json delta) {
    Json choice = Json::object();
    choice["index"] = part;
    choice["delta"] = std::move(delta);
    Json& logprobs = choice["logprobs"];
    if (!parts()[part].tokens.empty()) logprobs = chat_logprobs(told(part), service().model.tokenizer);
    choice["finish_reason"] = nullptr;
    return choice;
  }

  /// Null where there is nothing to tell.
  Json delta(const AnswerEvent& event) const {
    switch (event.kind) {
      case AnswerEvent::Kind::reasoning: {
        Json out = Json::object();
        set_reasoning(out, event.text, service().options);
        return out;
      }
      case AnswerEvent::Kind::content:
        return {{"content", event.text}};
      case AnswerEvent::Kind::call_begin:
        return call(event.call, {{"id", random_id("call_")},
                                 {"type", "function"},
                                 {"function", {{"name", event.text}, {"arguments", ""}}}});
      case AnswerEvent::Kind::arguments:
        return call(event.call, {{"function", {{"arguments", event.text}}}});
      case AnswerEvent::Kind::call_end:
        break;
    }
    return {};
  }

  static Json call(int index, const Json& members) {
    Json one{{"index", index}};
    one.update(members);
    return {{"tool_calls", Json::array({std::move(one)})}};
  }

  const StreamHead head_{AnswerHead::make("chatcmpl-").json("chat.completion.chunk", service().model)};
};

}  // namespace

ApiResult<void> answer_chat_completions(const Service& service, const HttpRequest& request,
                                        const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(const Json body, parse_body(request.body));
  TERCET_TRY(ChatRequest chat, read_chat_request(body, service));
  TERCET_TRY(std::vector<Request> parts, engine_requests(chat, service));
  std::unique_ptr<AnswerConsumer> consumer;
  if (chat.stream.on) {
    consumer = std::make_unique<ChatStream>(service, std::move(chat), exchange);
  } else {
    consumer = std::make_unique<WholeChat>(service, std::move(chat), exchange);
  }
  return generate(service.driver, exchange, std::move(parts), std::move(consumer));
}

}  // namespace tercet
