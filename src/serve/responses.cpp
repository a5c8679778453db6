#include <algorithm>
#include <ctime>
#include <optional>

#include "serve/chat_consumer.h"
#include "serve/endpoints.h"
#include "serve/ids.h"
#include "serve/openai_json.h"
#include "serve/responses_request.h"

namespace tercet {
namespace {

using Kind = AnswerEvent::Kind;

/// An event of a stream, numbered.
std::string sse_event(const char* type, const Json& members, int64_t number) {
  Json event{{"type", type}, {"sequence_number", number}};
  event.update(members);
  return fmt::format("event: {}\n{}", type, sse_data(event));
}

/// Makes items of an answer's events, and tells of them as they come.
class ResponseConsumer final : public ChatConsumer {
 public:
  ResponseConsumer(const Service& service, ChatRequest request, std::shared_ptr<Exchange> exchange, Json body,
                   ResponseCalls calls)
      : ChatConsumer(service, std::move(request), std::move(exchange)),
        body_(std::move(body)),
        calls_(std::move(calls)),
        carries_thoughts_(asks_for_thoughts(body_)) {}

  void begin(const std::vector<Submitted>& submitted) override {
    ChatConsumer::begin(submitted);
    if (!request().stream.on) return;
    exchange().begin_stream([this] { return keep_alive(); });
    tell("response.created", {{"response", response("in_progress")}});
    tell("response.in_progress", {{"response", response("in_progress")}});
  }

  void end() override {
    const bool cut = parts()[0].reason == FinishReason::length;
    const char* status = cut ? "incomplete" : "completed";
    if (item_) close(status);
    tally().note(exchange());
    Json whole = response(status);
    whole["usage"] = usage();
    whole["timings"] = tally().timings_json();
    if (!request().stream.on) return respond_json(exchange(), whole);
    tell(cut ? "response.incomplete" : "response.completed", {{"response", std::move(whole)}});
    exchange().end();
  }

  void fail(const ApiError& error) override {
    if (!request().stream.on) return exchange().respond(openai_error_response(error));
    exchange().note("error", to_json_text(error.message));
    Json whole = response("failed");
    whole["error"] = {{"code", "server_error"}, {"message", error.message}};
    tell("response.failed", {{"response", std::move(whole)}});
    exchange().end();
  }

 protected:
  void on_progress(int32_t done) override {
    if (!request().stream.on) return;
    exchange().write(sse_progress(done, request().prompt.tokens.size()) + keep_alive());
  }

  void on_events(size_t /*part*/, const std::vector<AnswerEvent>& events) override {
    for (const AnswerEvent& event : events) add_event(event);
  }

 private:
  /// The item that is being written.
  struct Item {
    Kind kind;  // reasoning, content, or call_begin for a call
    Json json;
    std::string text;  // so far; of a call, its arguments
  };

  static bool asks_for_thoughts(const Json& body) {
    const Json* include = find_member(body, "include");
    return is_present(include) &&
           std::find(include->begin(), include->end(), kEncryptedThoughts) != include->end();
  }

  /// Clients with a limit on silence hear no comments, only events; OpenAI has this one for it.
  std::string keep_alive() { return sse_event("keepalive", Json::object(), number_++); }

  void tell(const char* type, const Json& members) {
    if (request().stream.on) exchange().write(sse_event(type, members, number_++));
  }

  /// Where in the response something belongs.
  Json place(bool part) const {
    Json place{{"item_id", item_->json["id"]}, {"output_index", output_.size()}};
    if (part) place["content_index"] = 0;
    return place;
  }

  static Json with(Json object, const Json& members) {
    object.update(members);
    return object;
  }

  Json part_json() const {
    if (item_->kind == Kind::reasoning) return {{"type", "reasoning_text"}, {"text", item_->text}};
    return {{"type", "output_text"},
            {"text", item_->text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  void add_event(const AnswerEvent& event) {
    switch (event.kind) {
      case Kind::reasoning:
      case Kind::content: {
        if (item_ && item_->kind != event.kind) close("completed");
        if (!item_) open(event.kind, {});
        item_->text += event.text;
        Json delta = with(place(true), Json::object({{"delta", event.text}}));
        if (event.kind == Kind::content) delta["logprobs"] = Json::array();
        const bool thought = event.kind == Kind::reasoning;
        return tell(thought ? "response.reasoning_text.delta" : "response.output_text.delta", delta);
      }
      case Kind::call_begin:
        if (item_) close("completed");
        return open(event.kind, event.text);
      case Kind::arguments:
        item_->text += event.text;
        if (item_->json["type"] == "custom_tool_call") return;  // JSON about a string: told when it is whole
        return tell("response.function_call_arguments.delta",
                    with(place(false), Json::object({{"delta", event.text}})));
      case Kind::call_end:
        return close("completed");
    }
  }

  void open(Kind kind, const std::string& name) {
    if (kind == Kind::reasoning) {
      item_ = Item{kind,
                   {{"id", random_id("rs_")},
                    {"type", "reasoning"},
                    {"status", "in_progress"},
                    {"summary", Json::array()},
                    {"content", Json::array()},
                    {"encrypted_content", nullptr}},
                   {}};
    } else if (kind == Kind::content) {
      item_ = Item{kind,
                   {{"id", random_id("msg_")},
                    {"type", "message"},
                    {"status", "in_progress"},
                    {"role", "assistant"},
                    {"content", Json::array()}},
                   {}};
    } else {
      item_ = Item{kind, call_item(name), {}};
    }
    tell("response.output_item.added", {{"output_index", output_.size()}, {"item", item_->json}});
    if (kind != Kind::call_begin) {
      tell("response.content_part.added", with(place(true), Json::object({{"part", part_json()}})));
    }
  }

  Json call_item(const std::string& name) const {
    const auto known = calls_.find(name);
    Json call = known != calls_.end() ? known->second : Json{{"type", "function_call"}, {"name", name}};
    const bool custom = call["type"] == "custom_tool_call";
    call["id"] = random_id(custom ? "ctc_" : "fc_");
    call["status"] = "in_progress";
    call["call_id"] = random_id("call_");
    call[custom ? "input" : "arguments"] = "";
    return call;
  }

  void tell_call_done() {
    if (item_->json["type"] != "custom_tool_call") {
      item_->json["arguments"] = item_->text;
      return tell("response.function_call_arguments.done",
                  with(place(false), {{"name", item_->json["name"]}, {"arguments", item_->text}}));
    }
    const std::string input = custom_input(item_->text);
    item_->json["input"] = input;
    tell("response.custom_tool_call_input.delta", with(place(false), Json::object({{"delta", input}})));
    tell("response.custom_tool_call_input.done", with(place(false), Json::object({{"input", input}})));
  }

  /// Ends the item. A call that is cut is no call: nothing says that its arguments are done.
  void close(const char* status) {
    const bool call = item_->kind == Kind::call_begin;
    const bool whole = std::string_view(status) == "completed";
    if (call && !whole) return item_.reset();
    item_->json["status"] = status;
    if (call) {
      tell_call_done();
    } else {
      const bool thought = item_->kind == Kind::reasoning;
      Json done = with(place(true), Json::object({{"text", item_->text}}));
      if (!thought) done["logprobs"] = Json::array();
      tell(thought ? "response.reasoning_text.done" : "response.output_text.done", done);
      tell("response.content_part.done", with(place(true), Json::object({{"part", part_json()}})));
      item_->json["content"].push_back(part_json());
      if (thought && carries_thoughts_) item_->json["encrypted_content"] = carried_thought(item_->text);
    }
    tell("response.output_item.done", {{"output_index", output_.size()}, {"item", item_->json}});
    output_.push_back(std::move(item_->json));
    item_.reset();
  }

  Json usage() const {
    const Usage usage = tally().usage();
    return {{"input_tokens", usage.prompt_tokens},
            {"input_tokens_details", Json::object({{"cached_tokens", usage.cached_tokens}})},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", Json::object({{"reasoning_tokens", usage.reasoning_tokens}})},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  }

  Json given(const char* name, const Json& otherwise) const {
    const Json* member = find_member(body_, name);
    return is_present(member) ? *member : otherwise;
  }

  Json response(std::string_view status) const {
    const bool cut = status == "incomplete";
    Json response{{"id", id_},
                  {"object", "response"},
                  {"created_at", created_},
                  {"status", status},
                  {"background", false},
                  {"error", nullptr},
                  {"incomplete_details", cut ? Json::object({{"reason", "max_output_tokens"}}) : Json()},
                  {"instructions", given("instructions", nullptr)},
                  {"max_output_tokens", given("max_output_tokens", nullptr)},
                  {"metadata", given("metadata", Json::object())},
                  {"model", service().model_name()},
                  {"output", output_},
                  {"parallel_tool_calls", given("parallel_tool_calls", true)},
                  {"previous_response_id", nullptr},
                  {"reasoning", given("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
                  {"store", false},
                  {"temperature", exact_number(request().params.temperature)},
                  {"text", given("text", Json::object({{"format", Json::object({{"type", "text"}})}}))},
                  {"tool_choice", given("tool_choice", "auto")},
                  {"tools", given("tools", Json::array())},
                  {"top_p", exact_number(request().params.top_p)},
                  {"truncation", "disabled"},
                  {"usage", nullptr},
                  {"system_fingerprint", service().model.fingerprint}};
    if (!request().warnings.empty()) response["warnings"] = request().warnings;
    return response;
  }

  const Json body_;  // the request
  const ResponseCalls calls_;
  const bool carries_thoughts_;
  const std::string id_ = random_id("resp_");
  const int64_t created_ = std::time(nullptr);
  int64_t number_ = 0;           // of the next event
  Json output_ = Json::array();  // items that are done
  std::optional<Item> item_;
};

}  // namespace

ApiResult<void> answer_responses(const Service& service, const HttpRequest& request,
                                 const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(Json body, parse_body(request.body));
  TERCET_TRY(ResponsesBody translated, chat_body_of_responses(body));
  TERCET_TRY(ChatRequest chat, read_chat_body(std::move(translated.chat), service));
  TERCET_TRY(std::vector<Request> parts, engine_requests(chat, service));
  auto consumer = std::make_unique<ResponseConsumer>(service, std::move(chat), exchange, std::move(body),
                                                     std::move(translated.calls));
  return generate(service.driver, exchange, std::move(parts), std::move(consumer));
}

}  // namespace tercet
