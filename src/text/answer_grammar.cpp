#include "text/answer_grammar.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/schema.h"
#include "text/string_language.h"

namespace tercet {
namespace {

// Bounds on what requests bring; llguidance has its own on the effort.
constexpr size_t kMostArguments = 64;  // bits of a parametric rule
constexpr size_t kMostBytes = 4 << 20;
constexpr size_t kLongestSource = 64 << 10;
constexpr int kDeepestSchema = 100;
constexpr size_t kLongestKey = 1024;  // AnswerParser gives up on longer ones

// Lexemes of grammars that skip alike are told apart by what may follow, not by which grammar comes first. So
// all skip nothing, once.
constexpr std::string_view kHeader = "%llguidance {\"ignore_once\": true}\n";

bool within_depth(const Json& value, int most) {
  if (!value.is_structured()) return true;
  if (most == 0) return false;
  return std::all_of(value.begin(), value.end(),
                     [&](const Json& item) { return within_depth(item, most - 1); });
}

bool has_reference(const Json& value) {
  if (value.is_object() && value.contains("$ref")) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_reference);
}

/// Makes references into the root's copy at #/$defs/root of those into the root.
void move_references(Json& value) {
  if (!value.is_structured()) return;
  for (auto& [key, item] : value.items()) {
    if (key == "$ref" && item.is_string() && item.get_ref<const std::string&>().starts_with('#')) {
      item = "#/$defs/root" + item.get<std::string>().substr(1);
    } else {
      move_references(item);
    }
  }
}

bool is_excessive_multiple(const std::string& key, const Json& value) {
  constexpr double kMost = 10'000;
  if (key != "multipleOf" || !is_number(value)) return false;
  const double of = std::strtod(number_spelling(value).c_str(), nullptr);
  return !(of >= 1 / kMost && of <= kMost);
}

/// Takes out each `multipleOf` whose automaton would be too large; the first of them, or nothing.
std::optional<std::string> drop_excessive_multiples(Json& value) {
  std::optional<std::string> first;
  if (!value.is_structured()) return first;
  for (auto& [key, item] : value.items()) {
    std::optional<std::string> found =
        is_excessive_multiple(key, item) ? number_spelling(item) : drop_excessive_multiples(item);
    if (!first) first = std::move(found);
  }
  if (const Json* own = find_member(value, "multipleOf"); own && is_excessive_multiple("multipleOf", *own)) {
    value.erase("multipleOf");
  }
  return first;
}

/// `schema`, whose references are into `root`, as a document of its own.
Json standalone(const Json& schema, const Json& root) {
  if (!schema.is_object()) return schema == true ? Json::object() : schema;
  if (!has_reference(schema) || &schema == &root) return schema;
  Json document = schema;
  document.erase("$defs");
  move_references(document);
  Json copy = root;
  move_references(copy);
  document["$defs"] = Json::object({{"root", std::move(copy)}});
  return document;
}

/// The names of types for a schema's `type`.
Json type_names(unsigned types) {
  Json names = Json::array();
  if ((types & kStringType) != 0) names.push_back("string");
  if ((types & kFractionType) != 0) names.push_back("number");
  if ((types & kFractionType) == 0 && (types & kIntegerType) != 0) names.push_back("integer");
  if ((types & kBooleanType) != 0) names.push_back("boolean");
  if ((types & kNullType) != 0) names.push_back("null");
  if ((types & kArrayType) != 0) names.push_back("array");
  if ((types & kObjectType) != 0) names.push_back("object");
  return names;
}

/// One argument that a call may have.
struct Argument {
  std::string key;
  const Json* schema;
};

class Writer {
 public:
  Writer(const AnswerForm& form, const Tags& tags, LaxSchemas lax) : form_(form), tags_(tags), lax_(lax) {}

  Result<AnswerGrammar> write() {
    using Choice = ToolChoice::Kind;
    const bool calls = !form_.tools.empty() && form_.tool_choice.kind != Choice::none;
    if (calls) TERCET_TRY_VOID(write_calls());
    if (form_.tool_choice.kind == Choice::required || form_.tool_choice.kind == Choice::named) {
      rules_ += "start: calls\n";
    } else {
      TERCET_TRY_VOID(write_format());
      const bool text = form_.format.kind == ResponseFormat::Kind::text;
      rules_ += !calls ? "start: format\n" : text ? "start: format calls?\n" : "start: format | calls\n";
    }
    rules_ += "text: TEXT?\nTEXT: /(?s:.+)/\nnl: \"\\n\"?\n";
    Json answer{{"name", "answer"}, {"lark_grammar", fmt::format("{}{}", kHeader, rules_)}};
    grammars_.insert(grammars_.begin(), std::move(answer));
    TERCET_TRY_VOID(check_size(rules_.size()));
    return AnswerGrammar{to_json_text(Json::object({{"grammars", grammars_}})), std::move(parts_)};
  }

 private:
  std::string tag(Tag tag) const { return fmt::format("<[{}]>", tags_.id(tag)); }

  /// A grammar of its own and the name to refer to it by.
  Result<std::string> add_part(const std::string& where, std::string_view kind, Json source) {
    const std::string name = fmt::format("part{}", parts_.size());
    Json grammar{{"name", name}, {std::string(kind), std::move(source)}};
    parts_.push_back({where, to_json_text(Json::object({{"grammars", Json::array({grammar})}}))});
    grammars_.push_back(std::move(grammar));
    TERCET_TRY_VOID(check_size(parts_.back().grammar.size()));
    return "@" + name;
  }

  /// Each part may hold a copy of what its schema refers to, so what grows is looked at as it grows.
  Result<void> check_size(size_t more) {
    bytes_ += more;
    if (bytes_ <= kMostBytes) return {};
    return fail("the schemas of tools and response_format are too large: at most {} bytes in all, found {}",
                kMostBytes, bytes_);
  }

  Result<std::string> add_schema(Json document, bool strict, const std::string& where) {
    if (document == false) return fail("{}: no value is allowed by the schema false", where);
    if (!within_depth(document, kDeepestSchema)) {
      return fail("{}: the schema nests more than {} deep", where, kDeepestSchema);
    }
    if (const auto multiple = drop_excessive_multiples(document); multiple && strict) {
      return fail("{}: `multipleOf` is supported from 0.0001 to 10000, found {}", where, *multiple);
    }
    // Spaces as in the arguments that chat templates show; elsewhere none, of which there could be no end.
    document["x-guidance"] = {{"whitespace_flexible", false},
                              {"item_separator", ",[ ]?"},
                              {"key_separator", ":[ ]?"},
                              {"lenient", !strict}};
    return add_part(where, "json_schema", std::move(document));
  }

  /// A regular expression or a grammar that a request brings.
  Result<std::string> add_source(const ResponseFormat& format, const std::string& where) {
    if (format.source.size() > kLongestSource) {
      return fail("{}: a grammar may have {} bytes, found {}", where, kLongestSource, format.source.size());
    }
    const bool regex = format.kind == ResponseFormat::Kind::regex;
    return add_part(where, "lark_grammar",
                    regex ? fmt::format("{}start: {}\n", kHeader, lark_regex(format.source)) : format.source);
  }

  Result<void> write_format() {
    using Kind = ResponseFormat::Kind;
    const ResponseFormat& format = form_.format;
    std::string body = "text";
    if (format.kind == Kind::json_schema) {
      TERCET_TRY(body, add_schema(standalone(format.schema, format.schema), format.strict,
                                  "response_format.json_schema.schema"));
    } else if (format.kind == Kind::regex || format.kind == Kind::lark) {
      TERCET_TRY(body, add_source(format, format.kind == Kind::regex ? "structured_outputs.regex"
                                                                     : "structured_outputs.grammar"));
    } else if (format.kind == Kind::choice) {
      // One terminal: the alternatives of a rule would be a lexeme each.
      std::string terminal;
      bool none = false;
      for (const std::string& choice : format.choices) {
        none = none || choice.empty();
        if (choice.empty()) continue;
        terminal += terminal.empty() ? "CHOICE: " : " | ";
        terminal += lark_literal(choice);
      }
      rules_ += terminal + "\n";
      body = terminal.empty() ? "\"\"" : none ? "CHOICE?" : "CHOICE";
    }
    rules_ += fmt::format("format: {}\n", body);
    return {};
  }

  Result<void> write_calls() {
    std::string names;
    for (size_t i = 0; i < form_.tools.size(); ++i) {
      const ToolForm& tool = form_.tools[i];
      if (form_.tool_choice.kind == ToolChoice::Kind::named && tool.name != form_.tool_choice.name) continue;
      TERCET_TRY(const std::string arguments,
                 write_arguments(i, tool, fmt::format("tools[{}].function.parameters", i)));
      rules_ += fmt::format("call{}: {} {} nl {} {}\n", i, lark_literal(tool.name), tag(Tag::tool_sep),
                            arguments, tag(Tag::end_tool_call));
      names += fmt::format("{}call{}", names.empty() ? "" : " | ", i);
    }
    rules_ += fmt::format("call: {} ({}) nl\n", tag(Tag::tool_call), names);
    rules_ += fmt::format("calls: {} nl call{} {}\n", tag(Tag::tool_calls),
                          form_.parallel_tool_calls ? "+" : "", tag(Tag::end_tool_calls));
    return {};
  }

  /// Writes the rule of a tool's arguments; returns how to refer to it. Each argument sets a bit, those that
  /// are required the lowest, so that it comes once and in any order.
  Result<std::string> write_arguments(size_t number, const ToolForm& tool, const std::string& where) {
    std::vector<Argument> arguments;
    size_t required = 0;
    const Json* others = nullptr;
    TERCET_TRY_VOID(read_arguments(tool, where, arguments, required, others));
    if (arguments.empty() && others == nullptr) return std::string();
    const std::string rule = fmt::format("args{}", number);
    const bool counted = !arguments.empty();
    std::string body = fmt::format("{}{}: \"\"{}\n", rule, counted ? "::_" : "",
                                   required == 0 ? "" : fmt::format(" %if is_ones([0:{}])", required));
    std::string declared;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const Argument& argument = arguments[i];
      TERCET_TRY(const std::string value,
                 write_value(*argument.schema, argument.key, tool, fmt::format("VALUE{}-{}", number, i),
                             fmt::format("{}.properties.{}", where, argument.key)));
      body += fmt::format(" | {} {}::set_bit({}) %if bit_clear({})\n",
                          pair(lark_literal(argument.key), value), rule, i, i);
      declared += (declared.empty() ? "" : " | ") + lark_literal(argument.key);
    }
    if (others != nullptr) {
      const std::string key = fmt::format("KEY{}", number);
      rules_ += fmt::format("{}: /[A-Za-z0-9_.$-]{{1,64}}/{}\n", key,
                            declared.empty() ? "" : fmt::format(" & ~({})", declared));
      TERCET_TRY(const std::string value, write_value(*others, "", tool, fmt::format("OTHER{}", number),
                                                      where + ".additionalProperties"));
      body += fmt::format(" | {} {}{}\n", pair(key, value), rule, counted ? "::_" : "");
    }
    rules_ += body;
    return counted ? rule + "::0" : rule;
  }

  std::string pair(const std::string& key, const std::string& value) const {
    return fmt::format("{} {} {} nl {} {} {} nl", tag(Tag::arg_key), key, tag(Tag::end_arg_key),
                       tag(Tag::arg_value), value, tag(Tag::end_arg_value));
  }

  /// The arguments that a tool's schema names, required ones first, and the schema of others (or null).
  Result<void> read_arguments(const ToolForm& tool, const std::string& where,
                              std::vector<Argument>& arguments, size_t& required, const Json*& others) const {
    static const Json kAnything = Json::object();
    const Json* schema = &tool.parameters;
    for (int hops = 0; hops < 8; ++hops) {
      const Json* reference = find_member(*schema, "$ref");
      const Json* target = reference == nullptr ? nullptr : referred(tool.parameters, *reference);
      if (target == nullptr) break;
      schema = target;
    }
    const Json* properties = find_member(*schema, "properties");
    const Json* rest = find_member(*schema, "additionalProperties");
    const bool open = rest == nullptr ? properties == nullptr : *rest != false;
    if (open && *schema != false) others = rest != nullptr && rest->is_object() ? rest : &kAnything;
    for (const char* keyword :
         {"allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "dependentRequired",
          "dependentSchemas", "minProperties", "maxProperties", "propertyNames", "$ref"}) {
      if (find_member(*schema, keyword) == nullptr) continue;
      if (tool.strict) return fail("{}: `{}` is not supported for the arguments of a tool", where, keyword);
      const std::string_view name = keyword;
      if (name == "allOf" || name == "anyOf" || name == "oneOf") others = &kAnything;
    }
    if (properties != nullptr && properties->size() > kMostArguments) {
      return too_many(properties->size(), where);
    }
    const auto add = [&](const std::string& key, const Json& value) {
      const auto same = [&](const Argument& argument) { return argument.key == key; };
      if (std::none_of(arguments.begin(), arguments.end(), same)) arguments.push_back({key, &value});
    };
    const Json* must = find_member(*schema, "required");
    for (const Json& key : must != nullptr && must->is_array() ? *must : Json::array()) {
      if (!key.is_string()) return fail("{}.required: expected strings, found {}", where, type_name(key));
      const std::string name = key.get<std::string>();
      const Json* value = properties == nullptr ? nullptr : find_member(*properties, name);
      add(name, value != nullptr ? *value : others != nullptr ? *others : kAnything);
      if (arguments.size() > kMostArguments) break;
    }
    required = arguments.size();
    if (properties != nullptr && properties->is_object()) {
      for (const auto& [key, value] : properties->items()) add(key, value);
    }
    return check_arguments(arguments, where);
  }

  static tl::unexpected<Error> too_many(size_t arguments, const std::string& where) {
    return fail("{}: at most {} properties are supported, found {}", where, kMostArguments, arguments);
  }

  static Result<void> check_arguments(const std::vector<Argument>& arguments, const std::string& where) {
    if (arguments.size() > kMostArguments) return too_many(arguments.size(), where);
    for (const auto& [key, schema] : arguments) {
      constexpr std::string_view kWhite = " \t\r\n";
      const bool fits = !key.empty() && key.size() <= kLongestKey &&
                        kWhite.find(key.front()) == kWhite.npos && kWhite.find(key.back()) == kWhite.npos;
      if (!fits) {
        return fail(
            "{}.properties: expected names of 1 to {} bytes without white space at their ends, found {}",
            where, kLongestKey, to_json_text(key));
      }
    }
    return {};
  }

  /// What may stand between arg_value and its closer, as CallArguments reads it. Terminals are called `name`.
  Result<std::string> write_value(const Json& schema, const std::string& key, const ToolForm& tool,
                                  const std::string& name, const std::string& where) {
    if (tool.input.kind != ResponseFormat::Kind::text && key == "input") {
      return add_source(tool.input, fmt::format("tools: the format of {}", tool.name));
    }
    const unsigned types = argument_types(tool.parameters, key).types;
    const unsigned others = types & ~unsigned{kStringType};
    const bool by_type = !tool.strict && lax_ == LaxSchemas::types;
    if (types == kAnyType) return std::string("text");
    if (types == others) {
      const Json document =
          by_type ? Json::object({{"type", type_names(types)}}) : standalone(schema, tool.parameters);
      return add_schema(document, tool.strict, where);
    }
    StringLanguage strings;
    if (!by_type) {
      TERCET_TRY(strings, string_language(schema, tool.parameters, tool.strict, where));
    }
    const bool structured = (others & (kArrayType | kObjectType)) != 0;
    if (strings.kind == StringLanguage::Kind::any && !structured) return std::string("text");
    std::string value;
    if (strings.kind == StringLanguage::Kind::some) {
      rules_ += fmt::format("{}: {}\n", name, strings.terminal);
      value = name;
    } else if (strings.kind == StringLanguage::Kind::any) {
      // What begins so would be read as an array or an object.
      rules_ += fmt::format("{}: /[^\\[{{ \\t\\r\\n](?s:.*)/\n", name);
      value = name + "?";
    }
    if (others == kNullType) value += (value.empty() ? "" : " | ") + lark_literal("null");
    if (others != 0 && others != kNullType) {
      Json document = by_type ? Json::object() : Json::object({{"allOf", Json::array({schema})}});
      document["type"] = type_names(others);
      TERCET_TRY(const std::string json,
                 add_schema(standalone(document, tool.parameters), tool.strict, where));
      value += (value.empty() ? "" : " | ") + json;
    }
    if (value.empty()) return fail("{}: the schema allows no value", where);
    return fmt::format("({})", value);
  }

  const AnswerForm& form_;
  const Tags& tags_;
  LaxSchemas lax_;
  std::string rules_;
  Json grammars_ = Json::array();
  std::vector<AnswerGrammar::Part> parts_;
  size_t bytes_ = 0;  // of the parts
};

}  // namespace

Result<std::optional<AnswerGrammar>> answer_grammar(const AnswerForm& form, const Tags& tags,
                                                    LaxSchemas lax) {
  const bool calls_bind = !form.tools.empty() || form.tool_choice.kind != ToolChoice::Kind::automatic;
  if (form.format.kind == ResponseFormat::Kind::text && !calls_bind) return std::nullopt;
  TERCET_TRY(AnswerGrammar grammar, Writer(form, tags, lax).write());
  return grammar;
}

}  // namespace tercet
