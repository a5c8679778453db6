#include "serve/messages_request.h"

#include <algorithm>
#include <array>

namespace tercet {
namespace {

using Done = ApiResult<void>;

tl::unexpected<ApiError> wrong(const std::string& where, std::string_view what) {
  return refuse(
      {.message = fmt::format("{}: {}", where, what), .param = where.substr(0, where.find_first_of("[."))});
}

std::string word(const Json& value) {
  return value.is_string() ? to_json_text(value) : std::string(type_name(value));
}

/// A string, or a list of blocks of text.
ApiResult<std::string> text_of(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return wrong(where, fmt::format("expected a string or a list of blocks, found {}", type_name(content)));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    const Json* type = find_member(content[i], "type");
    if (type == nullptr || *type != "text") {
      return wrong(place, fmt::format("only blocks of text are supported, found {}",
                                      type == nullptr ? type_name(content[i]) : word(*type)));
    }
    auto piece = string_member(content[i], "text", place);
    if (!piece) return piece;
    text += *piece;
  }
  return text;
}

Done add_result(const Json& block, const std::string& where, ChatMessages& messages) {
  auto id = string_member(block, "tool_use_id", where);
  if (!id) return refuse(id.error());
  const Json* content = find_member(block, "content");
  std::string text;
  if (is_present(content)) {
    auto read = text_of(*content, where + ".content");
    if (!read) return refuse(read.error());
    text = std::move(*read);
  }
  messages.add_result(*id, std::move(text));
  return {};
}

Done add_user_block(const Json& block, const std::string& where, ChatMessages& messages, std::string& text) {
  auto type = string_member(block, "type", where);
  if (!type) return refuse(type.error());
  if (*type == "tool_result") return add_result(block, where, messages);
  if (*type != "text") {
    return wrong(where, fmt::format("expected a block of type text or tool_result, found {}", word(*type)));
  }
  auto piece = string_member(block, "text", where);
  if (!piece) return refuse(piece.error());
  text += (text.empty() ? "" : "\n") + *piece;
  return {};
}

Done add_assistant_block(const Json& block, const std::string& where, ChatMessages& messages) {
  auto type = string_member(block, "type", where);
  if (!type) return refuse(type.error());
  if (*type == "redacted_thinking") return {};
  if (*type == "text" || *type == "thinking") {
    auto text = string_member(block, *type == "text" ? "text" : "thinking", where);
    if (!text) return refuse(text.error());
    *type == "text" ? messages.add_answer(*text) : messages.add_reasoning(*text);
    return {};
  }
  if (*type != "tool_use") {
    return wrong(where,
                 fmt::format("expected a block of type text, thinking or tool_use, found {}", word(*type)));
  }
  auto id = string_member(block, "id", where);
  if (!id) return refuse(id.error());
  auto name = string_member(block, "name", where);
  if (!name) return refuse(name.error());
  const Json* input = find_member(block, "input");
  if (input == nullptr || !input->is_object()) {
    return wrong(where + ".input", fmt::format("expected an object, found {}",
                                               input == nullptr ? "nothing" : type_name(*input)));
  }
  messages.add_call(*id, *name, *input);
  return {};
}

Done add_message(const Json& message, const std::string& where, ChatMessages& messages) {
  auto role = string_member(message, "role", where);
  if (!role) return refuse(role.error());
  const Json* content = find_member(message, "content");
  if (content == nullptr) return wrong(where + ".content", "is missing");
  const bool assistant = *role == "assistant";
  if (!assistant && *role != "user" && *role != "system") {
    return wrong(where + ".role", fmt::format("expected user or assistant, found {}", word(*role)));
  }
  if (!content->is_array() || *role == "system") {
    auto text = text_of(*content, where + ".content");
    if (!text) return refuse(text.error());
    assistant ? messages.add_answer(*text) : messages.add(*role, std::move(*text));
    return {};
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string place = fmt::format("{}.content[{}]", where, i);
    auto added = assistant ? add_assistant_block((*content)[i], place, messages)
                           : add_user_block((*content)[i], place, messages, text);
    if (!added) return added;
  }
  if (!text.empty()) messages.add("user", std::move(text));
  return {};
}

Done read_messages(const Json& body, ChatBody& chat) {
  ChatMessages messages;
  if (const Json* system = find_member(body, "system"); is_present(system)) {
    auto text = text_of(*system, "system");
    if (!text) return refuse(text.error());
    if (!text->empty()) messages.add("system", std::move(*text));
  }
  const Json* list = find_member(body, "messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    return wrong("messages", "expected a list of at least one message");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    if (auto added = add_message((*list)[i], fmt::format("messages[{}]", i), messages); !added) return added;
  }
  if (list->back()["role"] == "assistant") {
    return wrong("messages", "the last one is the assistant's; to go on with an answer is not supported");
  }
  chat.body["messages"] = messages.take();
  return {};
}

Done read_tools(const Json& body, ChatBody& chat) {
  const Json* tools = find_member(body, "tools");
  if (!is_present(tools)) return {};
  if (!tools->is_array()) return wrong("tools", fmt::format("expected a list, found {}", type_name(*tools)));
  Json functions = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string where = fmt::format("tools[{}]", i);
    if (const Json* type = find_member(tool, "type"); is_present(type) && *type != "custom") {
      // What Anthropic runs itself (web search …) nobody runs here; the model does not hear of it.
      chat.ignored.push_back(fmt::format("{} ({})", where, word(*type)));
      continue;
    }
    auto name = string_member(tool, "name", where);
    if (!name) return refuse(name.error());
    Json function{{"name", *name}};
    if (const Json* description = find_member(tool, "description"); is_present(description)) {
      function["description"] = *description;
    }
    if (const Json* schema = find_member(tool, "input_schema"); is_present(schema))
      function["parameters"] = *schema;
    if (const Json* strict = find_member(tool, "strict"); is_present(strict)) function["strict"] = *strict;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (!functions.empty()) chat.body["tools"] = std::move(functions);
  return {};
}

Done read_tool_choice(const Json& body, ChatBody& chat) {
  const Json* choice = find_member(body, "tool_choice");
  if (!is_present(choice)) return {};
  auto type = string_member(*choice, "type", "tool_choice");
  if (!type) return refuse(type.error());
  if (*type == "tool") {
    auto name = string_member(*choice, "name", "tool_choice");
    if (!name) return refuse(name.error());
    chat.body["tool_choice"] = {{"type", "function"}, {"function", Json::object({{"name", *name}})}};
  } else if (*type == "any" || *type == "none") {
    chat.body["tool_choice"] = *type == "any" ? "required" : "none";
  } else if (*type != "auto") {
    return wrong("tool_choice.type", fmt::format("expected auto, any, tool or none, found {}", word(*type)));
  }
  const Json* one = find_member(*choice, "disable_parallel_tool_use");
  if (one != nullptr && *one == true) chat.body["parallel_tool_calls"] = false;
  return {};
}

Done read_thinking(const Json& body, ChatBody& chat) {
  const Json* config = find_member(body, "output_config");
  const Json* effort = config == nullptr ? nullptr : find_member(*config, "effort");
  const Json* thinking = find_member(body, "thinking");
  if (!is_present(thinking)) return {};
  auto type = string_member(*thinking, "type", "thinking");
  if (!type) return refuse(type.error());
  if (*type != "enabled" && *type != "adaptive" && *type != "disabled") {
    return wrong("thinking.type",
                 fmt::format("expected enabled, adaptive or disabled, found {}", word(*type)));
  }
  if (*type == "disabled") return {};
  chat.body["reasoning_effort"] = is_present(effort) ? *effort : Json("high");
  if (const Json* budget = find_member(*thinking, "budget_tokens"); is_present(budget)) {
    chat.body["thinking_token_budget"] = *budget;
  }
  return {};
}

constexpr std::array kRead{"messages", "system",         "tools",      "tool_choice",   "thinking",
                           "metadata", "stop_sequences", "max_tokens", "output_config", "service_tier"};

}  // namespace

ApiResult<ChatBody> chat_body_of_messages(const Json& body, bool needs_limit) {
  ChatBody chat;
  for (const auto& [name, value] : body.items()) {
    if (std::find(kRead.begin(), kRead.end(), std::string_view(name)) != kRead.end()) continue;
    chat.body.get_ref<Json::object_t&>().emplace_back(name, value);  // [] would look for it
  }
  for (const auto read : {read_messages, read_tools, read_tool_choice, read_thinking}) {
    if (auto done = read(body, chat); !done) return refuse(done.error());
  }
  if (const Json* stops = find_member(body, "stop_sequences"); is_present(stops)) chat.body["stop"] = *stops;
  const Json* most = find_member(body, "max_tokens");
  if (is_present(most)) {
    chat.body["max_tokens"] = *most;
  } else if (needs_limit) {
    return wrong("max_tokens", "is missing");
  }
  return chat;
}

}  // namespace tercet
