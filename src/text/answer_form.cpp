#include "text/answer_form.h"

#include <algorithm>
#include <limits>
#include <set>

namespace tercet {
namespace {

bool present(const Json* value) { return value != nullptr && !value->is_null(); }

std::string shown(const Json& value) {
  constexpr size_t kLongest = 40;
  const std::string text = to_json_text(value);
  return text.size() <= kLongest ? text : std::string(type_name(value));
}

Result<const Json*> member_object(const Json& object, std::string_view key, const std::string& where) {
  const Json* member = find_member(object, key);
  if (member == nullptr || !member->is_object()) {
    return fail("{}.{}: expected an object, found {}", where, key,
                member == nullptr ? "nothing" : type_name(*member));
  }
  return member;
}

Result<std::string> member_string(const Json& object, std::string_view key, const std::string& where) {
  const Json* member = find_member(object, key);
  if (member == nullptr || !member->is_string()) {
    return fail("{}.{}: expected a string, found {}", where, key,
                member == nullptr ? "nothing" : type_name(*member));
  }
  return member->get<std::string>();
}

Result<bool> member_flag(const Json& object, std::string_view key, bool otherwise, const std::string& where) {
  const Json* member = find_member(object, key);
  if (!present(member)) return otherwise;
  if (!member->is_boolean())
    return fail("{}{}: expected true or false, found {}", where, key, shown(*member));
  return member->get<bool>();
}

Result<Json> schema_of(const Json& schema, const std::string& where) {
  if (!schema.is_object() && !schema.is_boolean()) {
    return fail("{}: expected a JSON schema (an object), found {}", where, type_name(schema));
  }
  return schema;
}

/// What the wire format can carry: the parser ends a name at white space, braces and quotes.
bool is_function_name(std::string_view name) {
  constexpr size_t kLongest = 256;
  return !name.empty() && name.size() <= kLongest && name.find_first_of(" \t\r\n{}\"") == name.npos;
}

Result<ToolForm> read_tool(const Json& tool, const std::string& place) {
  const Json* type = find_member(tool, "type");
  if (type != nullptr && *type != "function") {
    return fail("{}.type: expected \"function\", found {}", place, shown(*type));
  }
  TERCET_TRY(const Json* function, member_object(tool, "function", place));
  const std::string where = place + ".function";
  ToolForm form;
  TERCET_TRY(form.name, member_string(*function, "name", where));
  if (!is_function_name(form.name)) {
    return fail("{}.name: expected 1 to 256 bytes without white space, braces and quotes, found {}", where,
                shown(form.name));
  }
  TERCET_TRY(form.strict, member_flag(*function, "strict", false, where + "."));
  // A function without `parameters` has none (OpenAI's reference).
  form.parameters = {{"type", "object"}, {"properties", Json::object()}};
  if (const Json* parameters = find_member(*function, "parameters"); present(parameters)) {
    TERCET_TRY(form.parameters, schema_of(*parameters, where + ".parameters"));
  }
  return form;
}

Result<std::vector<ToolForm>> read_tools(const Json* tools) {
  std::vector<ToolForm> forms;
  if (!present(tools)) return forms;
  if (!tools->is_array()) return fail("tools: expected a list, found {}", type_name(*tools));
  std::set<std::string> names;
  for (size_t i = 0; i < tools->size(); ++i) {
    TERCET_TRY(ToolForm form, read_tool((*tools)[i], fmt::format("tools[{}]", i)));
    if (!names.insert(form.name).second) {
      return fail("tools[{}].function.name: {} was declared before", i, shown(form.name));
    }
    forms.push_back(std::move(form));
  }
  return forms;
}

Result<ToolChoice> read_tool_choice(const Json* choice, const std::vector<ToolForm>& tools) {
  using Kind = ToolChoice::Kind;
  if (!present(choice) || *choice == "auto") return ToolChoice{Kind::automatic, {}};
  if (*choice == "none") return ToolChoice{Kind::none, {}};
  if (tools.empty()) return fail("tool_choice: {} needs tools, found none", shown(*choice));
  if (*choice == "required") return ToolChoice{Kind::required, {}};
  const Json* type = find_member(*choice, "type");
  if (type == nullptr || *type != "function") {
    return fail(
        "tool_choice: expected \"auto\", \"none\", \"required\" or {{\"type\": \"function\", \"function\": "
        "{{\"name\": …}}}}, found {}",
        shown(*choice));
  }
  TERCET_TRY(const Json* function, member_object(*choice, "function", "tool_choice"));
  TERCET_TRY(const std::string name, member_string(*function, "name", "tool_choice.function"));
  const auto is_it = [&](const ToolForm& tool) { return tool.name == name; };
  if (std::none_of(tools.begin(), tools.end(), is_it)) {
    return fail("tool_choice.function.name: no tool has the name {}", shown(name));
  }
  return ToolChoice{Kind::named, name};
}

Result<ResponseFormat> read_response_format(const Json& given) {
  const std::string where = "response_format";
  TERCET_TRY(const std::string type, member_string(given, "type", where));
  ResponseFormat format;
  if (type == "text") return format;
  format.kind = ResponseFormat::Kind::json_schema;
  format.schema = Json::object({{"type", "object"}});
  if (type == "json_object") return format;
  if (type != "json_schema") {
    return fail("{}.type: expected \"text\", \"json_object\" or \"json_schema\", found {}", where,
                shown(type));
  }
  TERCET_TRY(const Json* named, member_object(given, "json_schema", where));
  const Json* schema = find_member(*named, "schema");
  if (schema == nullptr) return fail("{}.json_schema.schema: is missing", where);
  TERCET_TRY(format.schema, schema_of(*schema, where + ".json_schema.schema"));
  TERCET_TRY(format.strict, member_flag(*named, "strict", true, where + ".json_schema."));
  return format;
}

Result<std::vector<std::string>> read_choices(const Json& list, const std::string& where) {
  if (!list.is_array() || list.empty()) {
    return fail("{}: expected a list of at least one string, found {}", where, shown(list));
  }
  std::vector<std::string> choices;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) {
      return fail("{}[{}]: expected a string, found {}", where, i, type_name(list[i]));
    }
    choices.push_back(list[i].get<std::string>());
  }
  return choices;
}

Result<ResponseFormat> read_structured_outputs(const Json& given) {
  using Kind = ResponseFormat::Kind;
  const std::string where = "structured_outputs";
  if (!given.is_object()) return fail("{}: expected an object, found {}", where, type_name(given));
  ResponseFormat format;
  for (const auto& [key, value] : given.items()) {
    if (value.is_null()) continue;
    if (format.kind != Kind::text) {
      return fail("{}: expected one of json, json_object, regex, choice and grammar, found several", where);
    }
    const std::string place = fmt::format("{}.{}", where, key);
    if (key == "json") {
      format.kind = Kind::json_schema;
      TERCET_TRY(format.schema, schema_of(value, place));
    } else if (key == "json_object") {
      TERCET_TRY(const bool wanted, member_flag(given, key, false, where + "."));
      if (!wanted) continue;
      format.kind = Kind::json_schema;
      format.schema = Json::object({{"type", "object"}});
    } else if (key == "regex" || key == "grammar") {
      format.kind = key == "regex" ? Kind::regex : Kind::lark;
      TERCET_TRY(format.source, member_string(given, key, where));
    } else if (key == "choice") {
      format.kind = Kind::choice;
      TERCET_TRY(format.choices, read_choices(value, place));
    } else {
      return fail("{}: expected json, json_object, regex, choice or grammar", place);
    }
  }
  return format;
}

}  // namespace

Result<AnswerForm> AnswerForm::read(const Json& request) {
  AnswerForm form;
  TERCET_TRY(form.tools, read_tools(find_member(request, "tools")));
  TERCET_TRY(form.tool_choice, read_tool_choice(find_member(request, "tool_choice"), form.tools));
  TERCET_TRY(form.parallel_tool_calls, member_flag(request, "parallel_tool_calls", true, ""));
  const Json* response_format = find_member(request, "response_format");
  const Json* structured = find_member(request, "structured_outputs");
  if (present(response_format)) {
    if (!response_format->is_object()) {
      return fail("response_format: expected an object, found {}", type_name(*response_format));
    }
    TERCET_TRY(form.format, read_response_format(*response_format));
  }
  if (present(structured)) {
    if (form.format.kind != ResponseFormat::Kind::text) {
      return fail("structured_outputs: response_format asks for another form");
    }
    TERCET_TRY(form.format, read_structured_outputs(*structured));
  }
  if (const Json* budget = find_member(request, "thinking_token_budget"); present(budget)) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (!budget->is_number_integer() || *budget < 0 || *budget > kMost) {
      return fail("thinking_token_budget: expected a whole number from 0 to {}, found {}", kMost,
                  shown(*budget));
    }
    form.max_thinking_tokens = budget->get<int32_t>();
  }
  return form;
}

bool AnswerForm::free() const {
  const bool calls_bind = !tools.empty() || tool_choice.kind != ToolChoice::Kind::automatic;
  return format.kind == ResponseFormat::Kind::text && !calls_bind && !max_thinking_tokens;
}

}  // namespace tercet
