#include "serve/messages_request.h"

#include <algorithm>
#include <array>

namespace tercet {
namespace {

using Done = ApiResult<void>;

/// A string, or a list of blocks of text. `label`: what a block of it begins with that is left out.
ApiResult<std::string> text_of(const Json& content, const std::string& where, std::string_view label = {}) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return wrong(where, fmt::format("expected a string or a list of blocks, found {}", type_name(content)));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    const Json* type = find_member(content[i], "type");
    const bool reference = type != nullptr && *type == "tool_reference";  // what a search for tools has found
    if (type == nullptr || (*type != "text" && !reference)) {
      return wrong(place, fmt::format("only blocks of text are supported, found {}",
                                      type == nullptr ? type_name(content[i]) : word(*type)));
    }
    auto piece = string_member(content[i], reference ? "tool_name" : "text", place);
    if (!piece) return piece;
    if (label.empty() || !piece->starts_with(label)) text += *piece;
  }
  return text;
}

Done add_result(const Json& block, const std::string& where, ChatInput& input) {
  auto id = string_member(block, "tool_use_id", where);
  if (!id) return refuse(id.error());
  const Json* content = find_member(block, "content");
  std::string text;
  if (is_present(content)) {
    auto read = text_of(*content, where + ".content");
    if (!read) return refuse(read.error());
    text = std::move(*read);
  }
  const Json* failed = find_member(block, "is_error");
  if (text.empty() && failed != nullptr && *failed == true) text = "error";
  input.messages.add_result(*id, std::move(text));
  return {};
}

/// What Anthropic's own tools leave behind in a conversation. Nothing that runs here has made it or can read
/// it.
bool is_hosted(std::string_view type) {
  return type == "server_tool_use" || type == "mcp_tool_use" || type == "container_upload" ||
         (type.ends_with("_tool_result") && type != "tool_result");
}

Done add_user_block(const Json& block, const std::string& where, ChatInput& input, std::string& text) {
  auto type = string_member(block, "type", where);
  if (!type) return refuse(type.error());
  if (*type == "tool_result") return add_result(block, where, input);
  if (is_hosted(*type)) {
    input.ignored.push_back(fmt::format("{} ({})", where, *type));
    return {};
  }
  if (*type != "text") {
    return wrong(where, fmt::format("expected a block of type text or tool_result, found {}", word(*type)));
  }
  auto piece = string_member(block, "text", where);
  if (!piece) return refuse(piece.error());
  text += (text.empty() ? "" : "\n") + *piece;
  return {};
}

Done add_thought(const Json& block, const std::string& where, ChatInput& input) {
  auto text = string_member(block, "thinking", where);
  if (!text) return refuse(text.error());
  // A thought whose text was not to be told is in its signature.
  if (text->empty()) *text = read_carried_thought(find_member(block, "signature")).value_or("");
  input.messages.add_reasoning(*text);
  return {};
}

Done add_assistant_block(const Json& block, const std::string& where, ChatInput& input) {
  auto type = string_member(block, "type", where);
  if (!type) return refuse(type.error());
  if (*type == "redacted_thinking" || is_hosted(*type)) {
    input.ignored.push_back(fmt::format("{} ({})", where, *type));
    return {};
  }
  if (*type == "thinking") return add_thought(block, where, input);
  if (*type == "text") {
    auto text = string_member(block, "text", where);
    if (!text) return refuse(text.error());
    input.messages.add_answer(*text);
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
  const Json* arguments = find_member(block, "input");
  if (arguments == nullptr || !arguments->is_object()) {
    return wrong(where + ".input", fmt::format("expected an object, found {}",
                                               arguments == nullptr ? "nothing" : type_name(*arguments)));
  }
  input.messages.add_call(*id, *name, *arguments);
  return {};
}

Done add_message(const Json& message, const std::string& where, ChatInput& input) {
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
    assistant ? input.messages.add_answer(*text) : input.messages.add(*role, std::move(*text));
    return {};
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string place = fmt::format("{}.content[{}]", where, i);
    auto added = assistant ? add_assistant_block((*content)[i], place, input)
                           : add_user_block((*content)[i], place, input, text);
    if (!added) return added;
  }
  if (!text.empty()) input.messages.add("user", std::move(text));
  return {};
}

/// Claude Code puts this header of its own before its system prompt. No model is meant to read it, and since
/// it differs from one conversation to the next, no prompt after it would ever be found in the cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

Done read_messages(const Json& body, ChatBody& chat) {
  ChatInput input;
  if (const Json* system = find_member(body, "system"); is_present(system)) {
    auto text = text_of(*system, "system", kBillingHeader);
    if (!text) return refuse(text.error());
    if (!text->empty()) input.messages.add("system", std::move(*text));
  }
  const Json* list = find_member(body, "messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    return wrong("messages", "expected a list of at least one message");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    if (auto added = add_message((*list)[i], fmt::format("messages[{}]", i), input); !added) return added;
  }
  if (list->back()["role"] == "assistant") {
    return wrong("messages", "the last one is the assistant's; to go on with an answer is not supported");
  }
  input.put_into(chat);
  return {};
}

Done add_tool(const Json& tool, const std::string& where, ChatBody& chat, Json& functions) {
  if (!tool.is_object()) return wrong(where, fmt::format("expected an object, found {}", type_name(tool)));
  if (const Json* type = find_member(tool, "type"); is_present(type) && *type != "custom") {
    // What Anthropic runs itself (web search …) nobody runs here; the model does not hear of it.
    chat.ignored.push_back(
        fmt::format("{} ({})", where, type->is_string() ? type->get<std::string>() : word(*type)));
    return {};
  }
  auto name = string_member(tool, "name", where);
  if (!name) return refuse(name.error());
  Json function{{"name", *name}};
  for (const auto& [key, value] : tool.items()) {
    if (value.is_null() || key == "name" || key == "type") continue;
    if (key == "description" || key == "strict") {
      function[key] = value;
    } else if (key == "input_schema") {
      function["parameters"] = value;
    } else if (key != "cache_control" && key != "eager_input_streaming") {  // these two ask for nothing
      chat.ignored.push_back(fmt::format("{}.{}", where, key));
    }
  }
  functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  return {};
}

Done read_tools(const Json& body, ChatBody& chat) {
  const Json* tools = find_member(body, "tools");
  if (!is_present(tools)) return {};
  if (!tools->is_array()) return wrong("tools", fmt::format("expected a list, found {}", type_name(*tools)));
  Json functions = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    if (auto added = add_tool((*tools)[i], fmt::format("tools[{}]", i), chat, functions); !added)
      return added;
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

/// Sets `omit` where thoughts are not to be told.
Done read_thinking(const Json& thinking, ChatBody& chat, bool& omit) {
  auto type = string_member(thinking, "type", "thinking");
  if (!type) return refuse(type.error());
  if (*type != "enabled" && *type != "adaptive" && *type != "disabled") {
    return wrong("thinking.type",
                 fmt::format("expected enabled, adaptive or disabled, found {}", word(*type)));
  }
  if (*type == "disabled") return {};
  chat.body["reasoning_effort"] = "high";
  for (const auto& [name, value] : thinking.items()) {
    if (name == "type" || value.is_null()) continue;
    if (name == "budget_tokens") {
      chat.body["thinking_token_budget"] = value;
    } else if (name == "display" && value == "omitted") {
      omit = true;
    } else if (name != "display" || value != "summarized") {  // told in full, for want of a summary
      chat.ignored.push_back(fmt::format("thinking.{}", name));
    }
  }
  return {};
}

Done read_format(const Json& format, const std::string& where, ChatBody& chat) {
  auto type = string_member(format, "type", where);
  if (!type) return refuse(type.error());
  if (*type != "json_schema") {
    return wrong(where + ".type", fmt::format("expected json_schema, found {}", word(*type)));
  }
  const Json* schema = find_member(format, "schema");
  if (!is_present(schema)) return wrong(where + ".schema", "is missing");
  chat.body["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", Json::object({{"schema", *schema}})}};
  return {};
}

Done read_output_config(const Json& config, ChatBody& chat) {
  if (!config.is_object()) {
    return wrong("output_config", fmt::format("expected an object, found {}", type_name(config)));
  }
  for (const auto& [name, value] : config.items()) {
    if (value.is_null()) continue;
    if (name == "format") {
      if (auto read = read_format(value, "output_config.format", chat); !read) return read;
    } else if (name == "effort" && chat.body.contains("reasoning_effort")) {
      chat.body["reasoning_effort"] = value;
    } else {  // without a thought there is nothing to spend an effort on
      chat.ignored.push_back(fmt::format("output_config.{}", name));
    }
  }
  return {};
}

/// To keep all thoughts is what is done anyway; other edits nobody makes here.
bool keeps_all(const Json& management) {
  const Json* edits = find_member(management, "edits");
  return management.size() == 1 && edits != nullptr && edits->is_array() &&
         std::all_of(edits->begin(), edits->end(), [](const Json& edit) {
           const Json* type = find_member(edit, "type");
           const Json* keep = find_member(edit, "keep");
           return type != nullptr && *type == "clear_thinking_20251015" && keep != nullptr && *keep == "all";
         });
}

/// Members that are read, or that ask for nothing: labels, and hints to caches.
constexpr std::array kRead{"messages",      "system",        "tools",          "tool_choice",
                           "thinking",      "metadata",      "stop_sequences", "max_tokens",
                           "output_config", "output_format", "service_tier",   "cache_control"};

}  // namespace

ApiResult<MessagesBody> chat_body_of_messages(const Json& body, bool needs_limit) {
  MessagesBody read;
  ChatBody& chat = read.chat;
  for (const auto& [name, value] : body.items()) {
    const bool known = std::find(kRead.begin(), kRead.end(), std::string_view(name)) != kRead.end();
    if (known || (name == "context_management" && keeps_all(value))) continue;
    chat.body.get_ref<Json::object_t&>().emplace_back(name, value);  // [] would look for it
  }
  for (const auto part : {read_messages, read_tools, read_tool_choice}) {
    if (auto done = part(body, chat); !done) return refuse(done.error());
  }
  if (const Json* thinking = find_member(body, "thinking"); is_present(thinking)) {
    if (auto done = read_thinking(*thinking, chat, read.omit_thoughts); !done) return refuse(done.error());
  }
  if (const Json* config = find_member(body, "output_config"); is_present(config)) {
    if (auto done = read_output_config(*config, chat); !done) return refuse(done.error());
  }
  if (const Json* format = find_member(body, "output_format"); is_present(format)) {
    if (auto done = read_format(*format, "output_format", chat); !done) return refuse(done.error());
  }
  if (const Json* stops = find_member(body, "stop_sequences"); is_present(stops)) chat.body["stop"] = *stops;
  const Json* most = find_member(body, "max_tokens");
  if (is_present(most)) {
    chat.body["max_tokens"] = *most;
  } else if (needs_limit) {
    return wrong("max_tokens", "is missing");
  }
  return read;
}

}  // namespace tercet
