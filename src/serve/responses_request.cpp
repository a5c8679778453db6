#include "serve/responses_request.h"

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

/// A string, or a list of parts with text.
ApiResult<std::string> text_of(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return wrong(where, fmt::format("expected a string or a list of parts, found {}", type_name(content)));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    const Json* type = find_member(content[i], "type");
    const bool has_text =
        type != nullptr && (*type == "input_text" || *type == "output_text" || *type == "text" ||
                            *type == "summary_text" || *type == "reasoning_text");
    if (!has_text && !(type != nullptr && *type == "refusal")) {
      return wrong(place, fmt::format("only parts of text are supported, found {}",
                                      type == nullptr ? type_name(content[i]) : word(*type)));
    }
    auto piece = string_member(content[i], has_text ? "text" : "refusal", place);
    if (!piece) return piece;
    text += *piece;
  }
  return text;
}

Done add_message(const Json& item, const std::string& where, ChatMessages& messages) {
  auto role = string_member(item, "role", where);
  if (!role) return refuse(role.error());
  const Json* content = find_member(item, "content");
  auto text = text_of(content == nullptr ? Json() : *content, where + ".content");
  if (!text) return refuse(text.error());
  if (*role == "assistant") {
    messages.add_answer(*text);
  } else if (*role == "user" || *role == "system" || *role == "developer") {
    messages.add(*role, std::move(*text));
  } else {
    return wrong(where + ".role",
                 fmt::format("expected user, assistant, system or developer, found {}", word(*role)));
  }
  return {};
}

Done add_reasoning(const Json& item, const std::string& where, ChatMessages& messages) {
  // The thought itself, or else its summary.
  for (const char* name : {"content", "summary"}) {
    const Json* parts = find_member(item, name);
    if (!is_present(parts) || parts->empty()) continue;
    auto text = text_of(*parts, fmt::format("{}.{}", where, name));
    if (!text) return refuse(text.error());
    messages.add_reasoning(*text);
    break;
  }
  return {};
}

Done add_item(const Json& item, const std::string& where, ChatMessages& messages) {
  if (!item.is_object()) return wrong(where, fmt::format("expected an object, found {}", type_name(item)));
  const Json* type = find_member(item, "type");
  if (type == nullptr || *type == "message") return add_message(item, where, messages);
  if (*type == "reasoning") return add_reasoning(item, where, messages);
  if (*type != "function_call" && *type != "function_call_output") {
    return wrong(where + ".type",
                 fmt::format("expected message, function_call, function_call_output or reasoning, found {}",
                             word(*type)));
  }
  auto id = string_member(item, "call_id", where);
  if (!id) return refuse(id.error());
  if (*type == "function_call_output") {
    const Json* output = find_member(item, "output");
    auto text = text_of(output == nullptr ? Json() : *output, where + ".output");
    if (!text) return refuse(text.error());
    messages.add_result(*id, std::move(*text));
    return {};
  }
  auto name = string_member(item, "name", where);
  if (!name) return refuse(name.error());
  auto arguments = string_member(item, "arguments", where);
  if (!arguments) return refuse(arguments.error());
  messages.add_call(*id, *name, *arguments);
  return {};
}

ApiResult<Json> read_input(const Json& body) {
  ChatMessages messages;
  if (const Json* instructions = find_member(body, "instructions"); is_present(instructions)) {
    auto text = text_of(*instructions, "instructions");
    if (!text) return refuse(text.error());
    messages.add("system", std::move(*text));
  }
  const Json* input = find_member(body, "input");
  if (!is_present(input)) return wrong("input", "is missing");
  if (input->is_string()) {
    messages.add("user", input->get<std::string>());
    return messages.take();
  }
  if (!input->is_array() || input->empty()) {
    return wrong("input", fmt::format("expected a string or a list of items, found {}",
                                      input->is_array() ? "none" : type_name(*input)));
  }
  for (size_t i = 0; i < input->size(); ++i) {
    if (auto added = add_item((*input)[i], fmt::format("input[{}]", i), messages); !added)
      return refuse(added.error());
  }
  return messages.take();
}

Done read_tools(const Json& body, ChatBody& chat) {
  const Json* tools = find_member(body, "tools");
  if (!is_present(tools)) return {};
  if (!tools->is_array()) return wrong("tools", fmt::format("expected a list, found {}", type_name(*tools)));
  Json functions = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string where = fmt::format("tools[{}]", i);
    auto type = string_member(tool, "type", where);
    if (!type) return refuse(type.error());
    if (*type != "function") {
      // What OpenAI runs itself (web_search …) nobody runs here; the model does not hear of it.
      chat.ignored.push_back(fmt::format("{} ({})", where, *type));
      continue;
    }
    Json function = tool;
    function.erase("type");
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (!functions.empty()) chat.body["tools"] = std::move(functions);
  return {};
}

Done read_tool_choice(const Json& body, ChatBody& chat) {
  const Json* choice = find_member(body, "tool_choice");
  if (!is_present(choice) || *choice == "auto") return {};
  const Json* type = find_member(*choice, "type");
  if (type == nullptr) {
    chat.body["tool_choice"] = *choice;
    return {};
  }
  if (*type != "function")
    return wrong("tool_choice.type", fmt::format("expected function, found {}", word(*type)));
  auto name = string_member(*choice, "name", "tool_choice");
  if (!name) return refuse(name.error());
  chat.body["tool_choice"] = {{"type", "function"}, {"function", Json::object({{"name", *name}})}};
  return {};
}

Done read_text_format(const Json& body, ChatBody& chat) {
  const Json* text = find_member(body, "text");
  const Json* format = text == nullptr ? nullptr : find_member(*text, "format");
  if (!is_present(format)) return {};
  auto type = string_member(*format, "type", "text.format");
  if (!type) return refuse(type.error());
  if (*type == "text") return {};
  Json out{{"type", *type}};
  if (*type == "json_schema") {
    Json named = *format;
    named.erase("type");
    out["json_schema"] = std::move(named);
  }
  chat.body["response_format"] = std::move(out);
  return {};
}

/// Members that are read above, or that ask for what is done anyway: hints to caches, nothing stored.
constexpr std::array kRead{"input",
                           "instructions",
                           "tools",
                           "tool_choice",
                           "reasoning",
                           "text",
                           "max_output_tokens",
                           "include",
                           "store",
                           "metadata",
                           "stream_options",
                           "prompt_cache_key",
                           "user",
                           "safety_identifier",
                           "truncation",
                           "previous_response_id",
                           "conversation",
                           "background",
                           "service_tier",
                           "top_logprobs",
                           "parallel_tool_calls"};

}  // namespace

ApiResult<ChatBody> chat_body_of_responses(const Json& body) {
  ChatBody chat;
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (is_present(find_member(body, name))) {
      return wrong(name, "is not supported: responses are not stored, send the whole input");
    }
  }
  if (const Json* background = find_member(body, "background");
      is_present(background) && *background != false) {
    return wrong("background", "is not supported: responses are not stored");
  }
  for (const auto& [name, value] : body.items()) {
    if (std::find(kRead.begin(), kRead.end(), std::string_view(name)) != kRead.end()) continue;
    chat.body.get_ref<Json::object_t&>().emplace_back(name, value);  // [] would look for it
  }
  auto messages = read_input(body);
  if (!messages) return refuse(messages.error());
  chat.body["messages"] = std::move(*messages);
  for (const auto read : {read_tools, read_tool_choice, read_text_format}) {
    if (auto done = read(body, chat); !done) return refuse(done.error());
  }
  if (const Json* parallel = find_member(body, "parallel_tool_calls");
      is_present(parallel) && *parallel != true) {
    chat.body["parallel_tool_calls"] = *parallel;
  }
  if (const Json* reasoning = find_member(body, "reasoning"); reasoning != nullptr) {
    if (const Json* effort = find_member(*reasoning, "effort"); is_present(effort)) {
      chat.body["reasoning_effort"] = *effort;
    }
  }
  if (const Json* most = find_member(body, "max_output_tokens"); is_present(most)) {
    chat.body["max_completion_tokens"] = *most;
  }
  if (const Json* top = find_member(body, "top_logprobs"); is_present(top) && *top != 0) {
    chat.ignored.push_back("top_logprobs");
  }
  return chat;
}

}  // namespace tercet
