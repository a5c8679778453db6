#include "text/messages.h"

#include <array>
#include <string>

namespace tercet {
namespace {

bool present(const Json* value) { return value != nullptr && !value->is_null(); }

std::string quoted(const Json& value) {
  constexpr size_t kLongest = 40;
  const std::string text = to_json_text(value);
  return text.size() <= kLongest ? text : std::string(type_name(value));
}

Result<std::string> string_of(const Json& value, const std::string& where) {
  if (!value.is_string()) return fail("{}: expected a string, found {}", where, type_name(value));
  return value.get<std::string>();
}

/// A string, null, or a list of text parts.
Result<std::string> content_text(const Json& content, const std::string& where) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return fail("{}: expected a string or a list of text parts, found {}", where, type_name(content));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    const Json* type = find_member(content[i], "type");
    if (type == nullptr || *type != "text") {
      return fail("{}: only parts of type \"text\" are supported, found {}", place,
                  type == nullptr ? type_name(content[i]) : quoted(*type));
    }
    const Json* part = find_member(content[i], "text");
    if (part == nullptr) return fail("{}: `text` is missing", place);
    TERCET_TRY(const std::string piece, string_of(*part, place + ".text"));
    text += piece;
  }
  return text;
}

Result<Json> arguments_object(const Json* arguments, const std::string& where) {
  if (!present(arguments)) return Json::object();
  if (arguments->is_object()) return *arguments;
  if (!arguments->is_string()) {
    return fail("{}: expected an object or a string of JSON, found {}", where, type_name(*arguments));
  }
  const std::string& text = arguments->get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  Result<Json> parsed = parse_json(text);
  if (parsed && parsed->is_object()) return std::move(*parsed);
  return Json::object({{"arguments", text}});
}

Result<Json> tool_calls(const Json& calls, const std::string& where) {
  if (!calls.is_array()) return fail("{}: expected a list, found {}", where, type_name(calls));
  Json out = calls;
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string place = fmt::format("{}[{}].function", where, i);
    const Json* function = find_member(out[i], "function");
    if (function == nullptr || !function->is_object()) return fail("{}: expected an object", place);
    const Json* name = find_member(*function, "name");
    if (name == nullptr) return fail("{}.name: is missing", place);
    TERCET_TRY(const std::string text, string_of(*name, place + ".name"));
    if (text.empty()) return fail("{}.name: is empty", place);
    TERCET_TRY(Json arguments, arguments_object(find_member(*function, "arguments"), place + ".arguments"));
    out[i]["function"]["arguments"] = std::move(arguments);
  }
  return out;
}

/// The assistant's thought and calls; the other roles have none.
Result<void> read_assistant(const Json& message, const std::string& where, Json& out) {
  for (const char* name : {"reasoning_content", "reasoning"}) {
    const Json* reasoning = find_member(message, name);
    if (!present(reasoning)) continue;
    TERCET_TRY(out["reasoning_content"], string_of(*reasoning, where + "." + name));
    break;
  }
  if (const Json* calls = find_member(message, "tool_calls"); present(calls)) {
    TERCET_TRY(out["tool_calls"], tool_calls(*calls, where + ".tool_calls"));
  }
  return {};
}

Result<Json> read_message(const Json& message, const std::string& where) {
  if (!message.is_object()) return fail("{}: expected an object, found {}", where, type_name(message));
  const Json* role = find_member(message, "role");
  if (role == nullptr) return fail("{}.role: is missing", where);
  Json out = Json::object();
  if (*role == "developer") {
    out["role"] = "system";
  } else if (*role == "system" || *role == "user" || *role == "assistant" || *role == "tool") {
    out["role"] = *role;
  } else {
    return fail("{}.role: expected system, developer, user, assistant or tool, found {}", where,
                quoted(*role));
  }
  const bool assistant = *role == "assistant";
  if (assistant) TERCET_TRY_VOID(read_assistant(message, where, out));
  const Json* content = find_member(message, "content");
  if (content == nullptr && !out.contains("tool_calls") && !out.contains("reasoning_content")) {
    return fail("{}.content: is missing", where);
  }
  TERCET_TRY(out["content"], content_text(content == nullptr ? Json() : *content, where + ".content"));
  for (const auto& [name, value] : message.items()) {
    const bool read = name == "reasoning" || name == "reasoning_content" || name == "tool_calls";
    if (!out.contains(name) && !(assistant && read)) out[name] = value;
  }
  return out;
}

Result<Json> read_messages(const Json* messages) {
  if (messages == nullptr) return fail("messages: is missing");
  if (!messages->is_array()) return fail("messages: expected a list, found {}", type_name(*messages));
  if (messages->empty()) return fail("messages: expected at least one, found none");
  Json out = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    TERCET_TRY(Json message, read_message((*messages)[i], fmt::format("messages[{}]", i)));
    out.push_back(std::move(message));
  }
  return out;
}

Result<void> check_tools(const Json& tools) {
  if (!tools.is_array()) return fail("tools: expected a list, found {}", type_name(tools));
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) return fail("{}: expected an object, found {}", where, type_name(tools[i]));
    const Json* type = find_member(tools[i], "type");
    if (type != nullptr && *type != "function") {
      return fail("{}.type: expected \"function\", found {}", where, quoted(*type));
    }
    const Json* function = find_member(tools[i], "function");
    if (function == nullptr || !function->is_object()) return fail("{}.function: expected an object", where);
    const Json* name = find_member(*function, "name");
    if (name == nullptr) return fail("{}.function.name: is missing", where);
    TERCET_TRY(const std::string text, string_of(*name, where + ".function.name"));
    if (text.empty()) return fail("{}.function.name: is empty", where);
    const Json* parameters = find_member(*function, "parameters");
    if (present(parameters) && !parameters->is_object()) {
      return fail("{}.function.parameters: expected an object, found {}", where, type_name(*parameters));
    }
  }
  return {};
}

struct Effort {
  const char* name;
  const char* level;
};
constexpr std::array<Effort, 8> kEfforts = {{{"none", "no_think"},
                                             {"no_think", "no_think"},
                                             {"minimal", "low"},
                                             {"low", "low"},
                                             {"medium", "high"},
                                             {"high", "high"},
                                             {"xhigh", "high"},
                                             {"max", "high"}}};

/// Null where the request says nothing.
Result<Json> read_effort(const Json& request, const Json& kwargs) {
  for (const Json* source : {&kwargs, &request}) {
    const Json* effort = find_member(*source, "reasoning_effort");
    if (!present(effort)) continue;
    std::string known;
    for (const Effort& entry : kEfforts) {
      if (*effort == entry.name) return Json(entry.level);
      known += (known.empty() ? "" : ", ") + std::string(entry.name);
    }
    return fail("reasoning_effort: expected one of {}, found {}", known, quoted(*effort));
  }
  for (const Json* source : {&kwargs, &request}) {
    const Json* thinking = find_member(*source, "enable_thinking");
    if (!present(thinking)) continue;
    if (!thinking->is_boolean())
      return fail("enable_thinking: expected a boolean, found {}", quoted(*thinking));
    return Json(thinking->get<bool>() ? "high" : "no_think");
  }
  return Json();
}

}  // namespace

Result<Json> template_variables(const Json& request) {
  if (!request.is_object()) return fail("the request: expected an object, found {}", type_name(request));
  Json out = Json::object();
  out["tools"] = nullptr;
  out["documents"] = nullptr;
  out["add_generation_prompt"] = true;

  Json kwargs = Json::object();
  if (const Json* given = find_member(request, "chat_template_kwargs"); present(given)) kwargs = *given;
  if (!kwargs.is_object())
    return fail("chat_template_kwargs: expected an object, found {}", type_name(kwargs));
  constexpr size_t kMostKwargs = 256;
  if (kwargs.size() > kMostKwargs) {
    return fail("chat_template_kwargs: at most {} are supported, found {}", kMostKwargs, kwargs.size());
  }
  for (const auto& [name, value] : kwargs.items()) {
    if (name == "messages" || name == "tools") return fail("chat_template_kwargs: may not set `{}`", name);
    out[name] = value;
  }
  if (const Json* add = find_member(request, "add_generation_prompt"); present(add)) {
    out["add_generation_prompt"] = *add;
  }
  if (!out["add_generation_prompt"].is_boolean()) {
    return fail("add_generation_prompt: expected a boolean, found {}", quoted(out["add_generation_prompt"]));
  }
  TERCET_TRY(Json effort, read_effort(request, kwargs));
  if (!effort.is_null()) out["reasoning_effort"] = std::move(effort);
  TERCET_TRY(out["messages"], read_messages(find_member(request, "messages")));
  if (const Json* tools = find_member(request, "tools"); present(tools)) {
    TERCET_TRY_VOID(check_tools(*tools));
    out["tools"] = *tools;
  }
  return out;
}

}  // namespace tercet
