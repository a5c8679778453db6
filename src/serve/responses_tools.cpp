#include "serve/responses_tools.h"

namespace tercet {
namespace {

using Done = ApiResult<void>;

struct Tools {
  Json functions = Json::array();
  ResponseCalls calls;
  std::map<std::string, ResponseFormat> inputs;  // by name, as ChatBody has them
  std::vector<std::string> ignored;
};

/// What a custom tool's format asks for; anything where there is none.
ApiResult<ResponseFormat> read_input_format(const Json& tool, const std::string& where, Tools& tools) {
  ResponseFormat input;
  const Json* format = find_member(tool, "format");
  if (!is_present(format)) return input;
  TERCET_TRY(const std::string type, string_member(*format, "type", where));
  if (type == "text") return input;
  if (type != "grammar") {
    tools.ignored.push_back(fmt::format("{} ({})", where, type));
    return input;
  }
  TERCET_TRY(const std::string syntax, string_member(*format, "syntax", where));
  if (syntax != "lark" && syntax != "regex") {
    return wrong(where + ".syntax", fmt::format("expected lark or regex, found {}", word(syntax)));
  }
  TERCET_TRY(input.source, string_member(*format, "definition", where));
  input.kind = syntax == "lark" ? ResponseFormat::Kind::lark : ResponseFormat::Kind::regex;
  return input;
}

/// A function that stands for a custom tool, which the model knows as `key`.
ApiResult<Json> function_of_custom(const Json& tool, const std::string& where, const std::string& key,
                                   Tools& tools) {
  Json function{{"name", tool["name"]},
                {"parameters",
                 {{"type", "object"},
                  {"properties", {{"input", Json::object({{"type", "string"}})}}},
                  {"required", Json::array({"input"})},
                  {"additionalProperties", false}}}};
  std::string description;
  if (const Json* text = find_member(tool, "description"); is_present(text)) {
    auto given = string_member(tool, "description", where);
    if (!given) return refuse(given.error());
    description = std::move(*given);
  }
  auto input = read_input_format(tool, where + ".format", tools);
  if (!input) return refuse(input.error());
  if (input->kind != ResponseFormat::Kind::text) {
    description += "\n\nThe input's grammar:\n" + input->source;
    tools.inputs[key] = std::move(*input);
  }
  function["description"] = std::move(description);
  return function;
}

Done add_tool(const Json& tool, const std::string& where, const std::string& group, Tools& tools);

Done add_namespace(const Json& space, const std::string& where, Tools& tools) {
  auto name = string_member(space, "name", where);
  if (!name) return refuse(name.error());
  const Json* list = find_member(space, "tools");
  if (list == nullptr || !list->is_array()) {
    return wrong(where + ".tools",
                 fmt::format("expected a list, found {}", list == nullptr ? "nothing" : type_name(*list)));
  }
  const size_t first = tools.functions.size();
  for (size_t i = 0; i < list->size(); ++i) {
    if (auto added = add_tool((*list)[i], fmt::format("{}.tools[{}]", where, i), *name, tools); !added)
      return added;
  }
  // A chat request has no place for what a namespace is for: the first of its functions tells it.
  const Json* purpose = find_member(space, "description");
  if (purpose != nullptr && purpose->is_string() && tools.functions.size() > first) {
    Json& function = tools.functions[first]["function"];
    const Json* own = find_member(function, "description");
    function["description"] = fmt::format("{}: {}\n\n{}", *name, purpose->get<std::string>(),
                                          own != nullptr && own->is_string() ? own->get<std::string>() : "");
  }
  return {};
}

Done add_tool(const Json& tool, const std::string& where, const std::string& group, Tools& tools) {
  auto type = string_member(tool, "type", where);
  if (!type) return refuse(type.error());
  if (*type == "namespace" && group.empty()) return add_namespace(tool, where, tools);
  const bool custom = *type == "custom";
  if (!custom && *type != "function") {
    // What OpenAI runs itself (web_search …) nobody runs here; the model does not hear of it.
    tools.ignored.push_back(fmt::format("{} ({})", where, *type));
    return {};
  }
  auto name = string_member(tool, "name", where);
  if (!name) return refuse(name.error());
  Json call{{"type", custom ? "custom_tool_call" : "function_call"}, {"name", *name}};
  if (!group.empty()) call["namespace"] = group;
  auto key = name_of_call(call, where);
  if (!key) return refuse(key.error());
  Json function = tool;
  if (custom) {
    auto made = function_of_custom(tool, where, *key, tools);
    if (!made) return refuse(made.error());
    function = std::move(*made);
  }
  function.erase("type");
  function["name"] = *key;
  tools.functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  tools.calls[std::move(*key)] = std::move(call);
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
  if (*type != "function" && *type != "custom") {
    return wrong("tool_choice.type", fmt::format("expected function or custom, found {}", word(*type)));
  }
  auto name = name_of_call(*choice, "tool_choice");
  if (!name) return refuse(name.error());
  chat.body["tool_choice"] = {{"type", "function"}, {"function", Json::object({{"name", *name}})}};
  return {};
}

}  // namespace

ApiResult<std::string> name_of_call(const Json& item, const std::string& where) {
  auto name = string_member(item, "name", where);
  if (!name || !is_present(find_member(item, "namespace"))) return name;
  auto group = string_member(item, "namespace", where);
  if (!group) return group;
  return fmt::format("{}.{}", *group, *name);
}

ApiResult<ResponseCalls> read_response_tools(const Json& body, ChatBody& chat) {
  Tools tools;
  const Json* list = find_member(body, "tools");
  if (is_present(list)) {
    if (!list->is_array()) {
      return wrong("tools", fmt::format("expected a list, found {}", type_name(*list)));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      if (auto added = add_tool((*list)[i], fmt::format("tools[{}]", i), "", tools); !added)
        return refuse(added.error());
    }
  }
  if (!tools.functions.empty()) chat.body["tools"] = std::move(tools.functions);
  if (auto chosen = read_tool_choice(body, chat); !chosen) return refuse(chosen.error());
  chat.inputs = std::move(tools.inputs);
  chat.ignored.insert(chat.ignored.end(), tools.ignored.begin(), tools.ignored.end());
  return std::move(tools.calls);
}

std::string custom_input(const std::string& arguments) {
  const auto parsed = parse_json(arguments);
  const Json* input = parsed ? find_member(*parsed, "input") : nullptr;
  return input != nullptr && input->is_string() ? input->get<std::string>() : arguments;
}

}  // namespace tercet
