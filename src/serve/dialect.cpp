#include "serve/dialect.h"

namespace tercet {
namespace {

constexpr std::string_view kCarried = "tercet:";

void append_member(Json& message, const char* name, const std::string& text) {
  Json& member = message[name];
  if (member.is_null()) member = "";
  member.get_ref<std::string&>() += text;
}

}  // namespace

ApiResult<ChatRequest> read_chat_body(ChatBody chat, const Service& service) {
  if (service.options.strict && !chat.ignored.empty()) {
    return refuse({.message = fmt::format("{}: is not supported", chat.ignored.front()),
                   .param = chat.ignored.front()});
  }
  TERCET_TRY(ChatRequest request, read_chat_request(chat.body, service));
  if (request.choices != 1) return refuse({.message = "n: there is one answer to a request", .param = "n"});
  for (ToolForm& tool : request.form.tools) {
    if (const auto found = chat.inputs.find(tool.name); found != chat.inputs.end())
      tool.input = found->second;
  }
  request.warnings.insert(request.warnings.end(), chat.ignored.begin(), chat.ignored.end());
  return request;
}

tl::unexpected<ApiError> wrong(const std::string& where, std::string_view what) {
  return refuse(
      {.message = fmt::format("{}: {}", where, what), .param = where.substr(0, where.find_first_of("[."))});
}

std::string word(const Json& value) {
  return value.is_string() ? to_json_text(value) : std::string(type_name(value));
}

ApiResult<std::string> string_member(const Json& object, std::string_view name, const std::string& where) {
  const Json* member = find_member(object, name);
  if (member == nullptr || !member->is_string()) {
    return wrong(
        fmt::format("{}.{}", where, name),
        fmt::format("expected a string, found {}", member == nullptr ? "nothing" : type_name(*member)));
  }
  return member->get<std::string>();
}

std::string carried_thought(const std::string& text) { return std::string(kCarried) + text; }

std::optional<std::string> read_carried_thought(const Json* carried) {
  if (carried == nullptr || !carried->is_string()) return std::nullopt;
  const auto& text = carried->get_ref<const std::string&>();
  return text.starts_with(kCarried) ? std::optional(text.substr(kCarried.size())) : std::nullopt;
}

Json& ChatMessages::assistant() {
  // A turn's thought comes first: after text or calls another turn begins with it.
  if (messages_.empty() || messages_.back()["role"] != "assistant") {
    messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  return messages_.back();
}

void ChatMessages::add(std::string_view role, std::string text) {
  messages_.push_back({{"role", role}, {"content", std::move(text)}});
}

void ChatMessages::add_reasoning(const std::string& text) {
  append_member(assistant(), "reasoning_content", text);
}

void ChatMessages::add_answer(const std::string& text) { append_member(assistant(), "content", text); }

void ChatMessages::add_call(const std::string& id, const std::string& name, Json arguments) {
  Json call{
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
  assistant()["tool_calls"].push_back(std::move(call));
}

void ChatMessages::add_result(const std::string& id, std::string text) {
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
}

void ChatInput::put_into(ChatBody& chat) {
  chat.body["messages"] = messages.take();
  chat.ignored.insert(chat.ignored.end(), ignored.begin(), ignored.end());
}

}  // namespace tercet
