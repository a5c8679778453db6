#include <optional>

#include "serve/chat_consumer.h"
#include "serve/endpoints.h"
#include "serve/ids.h"
#include "serve/messages_request.h"
#include "serve/openai_json.h"

namespace tercet {
namespace {

using Kind = AnswerEvent::Kind;

std::string sse_event(const char* type, const Json& members) {
  Json event = Json::object({{"type", type}});
  event.update(members);
  return fmt::format("event: {}\n{}", type, sse_data(event));
}

/// Makes blocks of an answer's events, and tells of them as they come.
class MessageConsumer final : public ChatConsumer {
 public:
  MessageConsumer(const Service& service, ChatRequest request, std::shared_ptr<Exchange> exchange,
                  bool omit_thoughts)
      : ChatConsumer(service, std::move(request), std::move(exchange)), omit_thoughts_(omit_thoughts) {}

  void begin(const std::vector<Submitted>& submitted) override {
    ChatConsumer::begin(submitted);
    if (!request().stream.on) return;
    exchange().begin_stream([] { return std::string(kPing); });
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    // What of the prompt is cached is not known yet: the message's end has the count.
    message["usage"] = usage({.prompt_tokens = static_cast<int32_t>(request().prompt.tokens.size())});
    tell("message_start", Json::object({{"message", std::move(message)}}));
  }

  void end() override {
    if (block_) close(block_->kind != Kind::call_begin);
    tally().note(exchange());
    const Json stop = stop_reason(parts()[0]);
    const bool sequence = stop.is_string();
    const Json ending{{"stop_reason", why_it_stopped(sequence)}, {"stop_sequence", sequence ? stop : Json()}};
    if (request().stream.on) {
      tell("message_delta", {{"delta", ending}, {"usage", usage(tally().usage())}});
      tell("message_stop", Json::object());
      return exchange().end();
    }
    Json message = head();
    message["content"] = std::move(content_);
    message.update(ending);
    message["usage"] = usage(tally().usage());
    respond_json(exchange(), message);
  }

  void fail(const ApiError& error) override {
    if (!request().stream.on) return exchange().respond(anthropic_error_response(error));
    exchange().note("error", to_json_text(error.message));
    exchange().write(fmt::format("event: error\n{}", sse_data(anthropic_error(error))));
    exchange().end();
  }

 protected:
  void on_progress(int32_t done) override {
    // Clients with a limit on silence hear no comments, only events.
    if (request().stream.on) exchange().write(sse_progress(done, request().prompt.tokens.size()) + kPing);
  }

  void on_events(size_t /*part*/, const std::vector<AnswerEvent>& events) override {
    for (const AnswerEvent& event : events) add_event(event);
  }

 private:
  /// The block that is being written.
  struct Block {
    Kind kind;  // reasoning, content, or call_begin for a call
    Json json;
    std::string text;  // so far; of a call, its arguments
  };

  std::string_view why_it_stopped(bool sequence) const {
    const std::string_view reason = parts()[0].finish_reason();
    if (reason == "length") {
      const auto& most = request().params.max_tokens;
      const bool at_limit = most && tally().usage().completion_tokens >= *most;
      return at_limit ? "max_tokens" : "model_context_window_exceeded";
    }
    if (reason == "tool_calls") return "tool_use";
    return sequence ? "stop_sequence" : "end_turn";
  }

  void tell(const char* type, const Json& members) {
    if (request().stream.on) exchange().write(sse_event(type, members));
  }

  void tell_delta(const char* type, const char* name, const std::string& text) {
    tell("content_block_delta", {{"index", index_}, {"delta", {{"type", type}, {name, text}}}});
  }

  void add_event(const AnswerEvent& event) {
    switch (event.kind) {
      case Kind::reasoning:
      case Kind::content: {
        if (block_ && block_->kind != event.kind) close(true);
        if (!block_) open(event.kind, {});
        block_->text += event.text;
        const bool thought = event.kind == Kind::reasoning;
        if (thought && omit_thoughts_) return;
        return tell_delta(thought ? "thinking_delta" : "text_delta", thought ? "thinking" : "text",
                          event.text);
      }
      case Kind::call_begin:
        if (block_) close(true);
        return open(event.kind, event.text);
      case Kind::arguments:
        block_->text += event.text;
        return tell_delta("input_json_delta", "partial_json", event.text);
      case Kind::call_end:
        return close(true);
    }
  }

  void open(Kind kind, const std::string& name) {
    Json json;
    if (kind == Kind::reasoning) {
      json = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    } else if (kind == Kind::content) {
      json = {{"type", "text"}, {"text", ""}};
    } else {
      json = {{"type", "tool_use"}, {"id", random_id("toolu_")}, {"name", name}, {"input", Json::object()}};
    }
    tell("content_block_start", {{"index", index_}, {"content_block", json}});
    block_ = Block{kind, std::move(json), {}};
  }

  /// A call that is not whole is none: its block does not stop.
  void close(bool whole) {
    if (!whole) return block_.reset();
    if (block_->kind == Kind::reasoning) {
      // Clients send it back with the thought. Nothing is to be signed, but it may have to stand for the
      // text.
      const std::string signature = omit_thoughts_ ? carried_thought(block_->text) : "none";
      tell_delta("signature_delta", "signature", signature);
      if (!omit_thoughts_) block_->json["thinking"] = block_->text;
      block_->json["signature"] = signature;
    } else if (block_->kind == Kind::content) {
      block_->json["text"] = block_->text;
    } else {
      block_->json["input"] = parse_json(block_->text).value_or(Json::object());
    }
    tell("content_block_stop", Json::object({{"index", index_}}));
    content_.push_back(std::move(block_->json));
    block_.reset();
    ++index_;
  }

  static Json usage(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.completion_tokens}};
  }

  Json head() const {
    Json head{{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", service().model_name()}};
    if (!request().warnings.empty()) head["warnings"] = request().warnings;
    return head;
  }

  static constexpr const char* kPing = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

  const bool omit_thoughts_;
  const std::string id_ = random_id("msg_");
  Json content_ = Json::array();  // blocks that are done
  int index_ = 0;                 // of the open block, or the next
  std::optional<Block> block_;
};

struct MessageRequest {
  ChatRequest chat;
  bool omit_thoughts;
};

ApiResult<MessageRequest> read_request(const std::string& text, const Service& service, bool needs_limit) {
  TERCET_TRY(const Json body, parse_body(text));
  TERCET_TRY(MessagesBody translated, chat_body_of_messages(body, needs_limit));
  TERCET_TRY(ChatRequest chat, read_chat_body(std::move(translated.chat), service));
  return MessageRequest{std::move(chat), translated.omit_thoughts};
}

}  // namespace

ApiResult<void> answer_messages(const Service& service, const HttpRequest& request,
                                const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(MessageRequest wanted, read_request(request.body, service, true));
  TERCET_TRY(std::vector<Request> parts, engine_requests(wanted.chat, service));
  auto consumer =
      std::make_unique<MessageConsumer>(service, std::move(wanted.chat), exchange, wanted.omit_thoughts);
  return generate(service.driver, exchange, std::move(parts), std::move(consumer));
}

ApiResult<void> answer_count_tokens(const Service& service, const HttpRequest& request,
                                    const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(const MessageRequest wanted, read_request(request.body, service, false));
  respond_json(*exchange, Json::object({{"input_tokens", wanted.chat.prompt.tokens.size()}}));
  return {};
}

}  // namespace tercet
