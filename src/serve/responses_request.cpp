#include "serve/responses_request.h"

#include <algorithm>
#include <array>

namespace tercet {
namespace {

using Done = ApiResult<void>;

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

/// The thought itself, or as this server has it carried, or else its summary.
Done add_reasoning(const Json& item, const std::string& where, ChatInput& input) {
  const Json* content = find_member(item, "content");
  const Json* summary = find_member(item, "summary");
  const Json* sealed = find_member(item, "encrypted_content");
  const bool told = is_present(content) && !content->empty();
  const auto carried = read_carried_thought(sealed);
  if (carried && !told) {
    input.messages.add_reasoning(*carried);
  } else if (told || (is_present(summary) && !summary->empty())) {
    auto text = text_of(told ? *content : *summary, where + (told ? ".content" : ".summary"));
    if (!text) return refuse(text.error());
    input.messages.add_reasoning(*text);
  } else if (is_present(sealed)) {
    input.ignored.push_back(where + ".encrypted_content");  // another server's, which nobody else can read
  }
  return {};
}

Done add_call(const Json& item, const std::string& where, bool custom, ChatInput& input) {
  auto id = string_member(item, "call_id", where);
  if (!id) return refuse(id.error());
  auto name = name_of_call(item, where);
  if (!name) return refuse(name.error());
  auto arguments = string_member(item, custom ? "input" : "arguments", where);
  if (!arguments) return refuse(arguments.error());
  input.messages.add_call(*id, *name, custom ? Json::object({{"input", *arguments}}) : Json(*arguments));
  return {};
}

Done add_output(const Json& item, const std::string& where, ChatInput& input) {
  auto id = string_member(item, "call_id", where);
  if (!id) return refuse(id.error());
  const Json* output = find_member(item, "output");
  auto text = text_of(output == nullptr ? Json() : *output, where + ".output");
  if (!text) return refuse(text.error());
  input.messages.add_result(*id, std::move(*text));
  return {};
}

/// What OpenAI's own tools leave behind in a conversation. Nothing that runs here has made it or can read it.
constexpr std::array kHostedItems{"web_search_call",
                                  "file_search_call",
                                  "code_interpreter_call",
                                  "image_generation_call",
                                  "computer_call",
                                  "computer_call_output",
                                  "local_shell_call",
                                  "local_shell_call_output",
                                  "shell_call",
                                  "shell_call_output",
                                  "apply_patch_call",
                                  "apply_patch_call_output",
                                  "tool_search_call",
                                  "tool_search_output",
                                  "mcp_list_tools",
                                  "mcp_call",
                                  "mcp_approval_request",
                                  "mcp_approval_response",
                                  "compaction"};

Done add_item(const Json& item, const std::string& where, ChatInput& input) {
  if (!item.is_object()) return wrong(where, fmt::format("expected an object, found {}", type_name(item)));
  const Json* type = find_member(item, "type");
  if (type == nullptr || *type == "message") return add_message(item, where, input.messages);
  if (*type == "reasoning") return add_reasoning(item, where, input);
  if (*type == "function_call") return add_call(item, where, false, input);
  if (*type == "custom_tool_call") return add_call(item, where, true, input);
  if (*type == "function_call_output" || *type == "custom_tool_call_output")
    return add_output(item, where, input);
  if (type->is_string() &&
      std::find(kHostedItems.begin(), kHostedItems.end(), type->get<std::string>()) != kHostedItems.end()) {
    input.ignored.push_back(fmt::format("{} ({})", where, type->get<std::string>()));
    return {};
  }
  return wrong(
      where + ".type",
      fmt::format("expected message, reasoning, function_call, custom_tool_call or an output of these, "
                  "found {}",
                  word(*type)));
}

Done read_input(const Json& body, ChatBody& chat) {
  ChatInput read;
  if (const Json* instructions = find_member(body, "instructions"); is_present(instructions)) {
    auto text = text_of(*instructions, "instructions");
    if (!text) return refuse(text.error());
    read.messages.add("system", std::move(*text));
  }
  const Json* input = find_member(body, "input");
  if (!is_present(input)) return wrong("input", "is missing");
  if (input->is_string()) {
    read.messages.add("user", input->get<std::string>());
  } else if (!input->is_array() || input->empty()) {
    return wrong("input", fmt::format("expected a string or a list of items, found {}",
                                      input->is_array() ? "none" : type_name(*input)));
  } else {
    for (size_t i = 0; i < input->size(); ++i) {
      if (auto added = add_item((*input)[i], fmt::format("input[{}]", i), read); !added) return added;
    }
  }
  read.put_into(chat);
  return {};
}

Done read_text(const Json& body, ChatBody& chat) {
  const Json* text = find_member(body, "text");
  if (!is_present(text)) return {};
  if (is_present(find_member(*text, "verbosity"))) chat.ignored.emplace_back("text.verbosity");
  const Json* format = find_member(*text, "format");
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

/// What is asked for only unless it has one of the values that are met anyway.
void name_unmet(const Json& value, const std::string& name, std::initializer_list<Json> met, ChatBody& chat) {
  if (!value.is_null() && std::find(met.begin(), met.end(), value) == met.end()) chat.ignored.push_back(name);
}

Done read_reasoning(const Json& body, ChatBody& chat) {
  const Json* reasoning = find_member(body, "reasoning");
  if (!is_present(reasoning)) return {};
  if (!reasoning->is_object()) {
    return wrong("reasoning", fmt::format("expected an object, found {}", type_name(*reasoning)));
  }
  for (const auto& [name, value] : reasoning->items()) {
    if (name == "effort") {
      if (!value.is_null()) chat.body["reasoning_effort"] = value;
    } else {
      // Thoughts are told themselves; nobody here sums them up, so a summary of any kind is none.
      name_unmet(value, fmt::format("reasoning.{}", name), {"auto"}, chat);
    }
  }
  return {};
}

Done read_include(const Json& body, ChatBody& chat) {
  const Json* include = find_member(body, "include");
  if (!is_present(include)) return {};
  if (!include->is_array()) {
    return wrong("include", fmt::format("expected a list, found {}", type_name(*include)));
  }
  for (size_t i = 0; i < include->size(); ++i) {
    const Json& one = (*include)[i];
    if (!one.is_string()) return wrong(fmt::format("include[{}]", i), "expected a string");
    if (one != kEncryptedThoughts)
      chat.ignored.push_back(fmt::format("include[{}] ({})", i, one.get<std::string>()));
  }
  return {};
}

/// Members that are read above, or that ask for nothing: labels, and hints to caches.
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
                           "client_metadata",
                           "stream_options",
                           "prompt_cache_key",
                           "prompt_cache_retention",
                           "user",
                           "safety_identifier",
                           "truncation",
                           "previous_response_id",
                           "conversation",
                           "background",
                           "service_tier",
                           "top_logprobs",
                           "parallel_tool_calls"};

void read_plain_members(const Json& body, ChatBody& chat) {
  for (const auto& [name, value] : body.items()) {
    if (std::find(kRead.begin(), kRead.end(), std::string_view(name)) != kRead.end()) continue;
    chat.body.get_ref<Json::object_t&>().emplace_back(name, value);  // [] would look for it
  }
  const auto member = [&](const char* name) {
    const Json* value = find_member(body, name);
    return value == nullptr ? Json() : *value;
  };
  if (const Json parallel = member("parallel_tool_calls"); !parallel.is_null() && parallel != true) {
    chat.body["parallel_tool_calls"] = parallel;
  }
  if (Json most = member("max_output_tokens"); !most.is_null()) {
    chat.body["max_completion_tokens"] = std::move(most);
  }
  name_unmet(member("store"), "store", {false}, chat);
  name_unmet(member("truncation"), "truncation", {"disabled"}, chat);
  name_unmet(member("top_logprobs"), "top_logprobs", {0}, chat);
}

}  // namespace

ApiResult<ResponsesBody> chat_body_of_responses(const Json& body) {
  ResponsesBody read;
  ChatBody& chat = read.chat;
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (is_present(find_member(body, name))) {
      return wrong(name, "is not supported: responses are not stored, send the whole input");
    }
  }
  if (const Json* background = find_member(body, "background");
      is_present(background) && *background != false) {
    return wrong("background", "is not supported: responses are not stored");
  }
  read_plain_members(body, chat);
  for (const auto part : {read_input, read_text, read_reasoning, read_include}) {
    if (auto done = part(body, chat); !done) return refuse(done.error());
  }
  auto calls = read_response_tools(body, chat);
  if (!calls) return refuse(calls.error());
  read.calls = std::move(*calls);
  return read;
}

}  // namespace tercet
