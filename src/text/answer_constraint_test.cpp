#include "text/answer_constraint.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <regex>
#include <set>

#include "text/answer_parser.h"
#include "text/test_model.h"
#include "text/test_validate.h"

namespace tercet {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

using Mask = std::vector<uint32_t>;

struct Model {
  explicit Model(const std::filesystem::path& directory)
      : tokenizer(Tokenizer::load(directory).value()), tags(Tags::read(tokenizer).value()) {}

  int32_t eos() const { return tags.id(Tag::eos); }
  AnswerGrammars make_grammars() const {
    const int32_t end = eos();
    return AnswerGrammars::create(tokenizer, tags, {&end, 1}, tokenizer.vocabulary_size()).value();
  }

  Tokenizer tokenizer;
  Tags tags;
  AnswerGrammars grammars = make_grammars();
};

const Model& tiny() {
  static const Model model(kTinyModel);
  return model;
}

bool allows(const Mask& mask, int32_t token) {
  return mask.empty() || ((mask[static_cast<size_t>(token) / 32] >> (token % 32)) & 1U) != 0;
}

AnswerConstraint compiled(const Json& request, bool in_thought = false, const Model& model = tiny()) {
  const AnswerForm form = AnswerForm::read(request).value();
  Result<AnswerConstraint> constraint = model.grammars.compile(form, in_thought);
  if (!constraint) ADD_FAILURE() << constraint.error().message;
  return std::move(constraint).value();
}

std::string error_of(const Json& request) {
  const Result<AnswerConstraint> constraint =
      tiny().grammars.compile(AnswerForm::read(request).value(), false);
  return constraint ? "no error" : constraint.error().message;
}

/// Tokens of an answer in which tags are spelled without their suffix.
std::vector<int32_t> tokens_of(std::string text, const Model& model) {
  for (size_t i = 0; i < kTagCount; ++i) {
    const Tag tag = static_cast<Tag>(i);
    if (tag > Tag::end_tool_response || model.tags.id(tag) < 0) continue;
    const std::string bare = fmt::format("<{}>", Tags::bare_name(tag));
    text = replaced(text, bare, fmt::format("<{}{}>", Tags::bare_name(tag), model.tags.suffix()));
  }
  return model.tokenizer.encode_prompt(text, {}).value();
}

/// How far the constraint follows an answer: "" for all of it up to an end that is allowed, else the first
/// token that is refused, or "open" where it may not end.
std::string outcome(AnswerConstraint constraint, const std::string& answer, const Model& model = tiny()) {
  for (const int32_t token : tokens_of(answer, model)) {
    if (!constraint.accept(token)) return model.tokenizer.decode({&token, 1}, false);
  }
  return allows(constraint.mask().value(), model.eos()) ? "" : "open";
}

struct Walk {
  std::vector<int32_t> tokens;
  bool ended = false;
};

/// Draws allowed tokens until the end is drawn. Tags and punctuation are favoured, or texts would not end.
Walk walk(AnswerConstraint constraint, unsigned seed, size_t most_tokens = 4000) {
  const Model& model = tiny();
  std::mt19937 random(seed);
  const auto one_of = [&](const std::vector<int32_t>& tokens) { return tokens[random() % tokens.size()]; };
  Walk walk;
  while (walk.tokens.size() < most_tokens) {
    const Mask mask = constraint.mask().value();
    std::vector<int32_t> all, tags, closers;
    for (int32_t token = 0; token < model.tokenizer.vocabulary_size(); ++token) {
      if (!allows(mask, token)) continue;
      all.push_back(token);
      const std::string_view bytes = model.tokenizer.token_bytes(token);
      if (model.tokenizer.is_control(token)) tags.push_back(token);
      if (!bytes.empty() && std::string_view("\"}]").find(bytes[0]) != std::string_view::npos) {
        closers.push_back(token);
      }
    }
    if (all.empty()) {
      ADD_FAILURE() << "nothing may follow " << model.tokenizer.decode(walk.tokens, false);
      return walk;
    }
    const unsigned dice = random() % 8;
    const int32_t token = dice < 3 && !tags.empty()      ? one_of(tags)
                          : dice < 6 && !closers.empty() ? one_of(closers)
                                                         : one_of(all);
    const Result<void> accepted = constraint.accept(token);
    if (!accepted) {
      ADD_FAILURE() << accepted.error().message;
      return walk;
    }
    if (token == model.eos()) {
      walk.ended = true;
      // Who ignores ends draws more of them, and nothing else.
      EXPECT_TRUE(constraint.accept(token));
      EXPECT_FALSE(constraint.accept(model.tags.id(Tag::tool_calls)));
      return walk;
    }
    walk.tokens.push_back(token);
  }
  return walk;
}

Answer parsed(const std::vector<int32_t>& tokens, const Json& request, bool in_thought = false) {
  AnswerParser parser(tiny().tokenizer, tiny().tags, request.value("tools", Json()), in_thought);
  Answer answer;
  answer.add(parser.add(tokens, AnswerEnd::stop));
  return answer;
}

Json json(std::string_view text) { return parse_json(text).value(); }

/// Tools whose arguments have every kind of value.
Json many_tools() {
  return json(R"({"tools": [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
                     "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
      "required": ["city", "days"]}}},
    {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "get_all"}},
    {"type": "function", "function": {"name": "plan", "strict": true, "parameters": {"type": "object",
      "$defs": {"place": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                          "near": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]}},
                          "required": ["name"], "additionalProperties": false}},
      "properties": {"from": {"$ref": "#/$defs/place"}, "via": {"type": "array", "items": {"$ref": "#/$defs/place"},
                     "minItems": 1, "maxItems": 2}, "fast": {"type": "boolean"}},
      "required": ["from"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "mixed", "strict": true, "parameters": {"type": "object",
      "properties": {"id": {"type": ["string", "integer"]}, "note": {"type": ["string", "null"]},
                     "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"},
                     "ratio": {"type": "number"}, "short": {"type": "string", "minLength": 1, "maxLength": 5},
                     "tags": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
                     "level": {"enum": ["low", 2, null]}},
      "required": ["level", "code"], "additionalProperties": false}}}]})");
}

const Json& parameters_of(const Json& request, const std::string& name) {
  static const Json kNone = json(R"({"type": "object", "additionalProperties": false})");
  for (const Json& tool : request["tools"]) {
    if (tool["function"]["name"] == name)
      return tool["function"].contains("parameters") ? tool["function"]["parameters"] : kNone;
  }
  return kNone;
}

/// Every call is one of the tokens' calls, of a declared tool, and its arguments fit. (Random digits may give
/// a number that no double holds, which the parser takes for text.)
void expect_calls(const Answer& answer, const Walk& walk, const Json& request) {
  static const std::regex kHuge("[0-9][eE][+]?[0-9]{3}");
  const auto opened = std::count(walk.tokens.begin(), walk.tokens.end(), tiny().tags.id(Tag::tool_call));
  EXPECT_EQ(answer.calls.size(), static_cast<size_t>(opened));
  for (const Answer::Call& call : answer.calls) {
    if (std::regex_search(call.arguments, kHuge)) continue;
    EXPECT_TRUE(is_valid(json(call.arguments), parameters_of(request, call.name)))
        << call.name << call.arguments << " from " << tiny().tokenizer.decode(walk.tokens, false);
  }
}

TEST(AnswerConstraint, RequiredCallsAreWholeAndValid) {
  Json request = many_tools();
  request["tool_choice"] = "required";
  std::map<std::string, int> names;
  std::set<bool> orders;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Walk w = walk(compiled(request), seed);
    if (!w.ended) continue;
    const Answer answer = parsed(w.tokens, request);
    EXPECT_EQ(answer.content, "");
    EXPECT_FALSE(answer.calls.empty());
    expect_calls(answer, w, request);
    for (const Answer::Call& call : answer.calls) {
      ++names[call.name];
      if (call.name != "get_weather") continue;
      orders.insert(call.arguments.find("\"city\": ") < call.arguments.find("\"days\": "));
    }
  }
  EXPECT_EQ(names.size(), 5u);
  EXPECT_EQ(orders.size(), 2u);
}

constexpr const char* kWeatherCall =
    "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Graz</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n</tool_calls>";

TEST(AnswerConstraint, FollowsTheWireFormatOfCalls) {
  Json request = many_tools();
  request["tool_choice"] = "required";
  const auto with = [&](const std::string& answer) { return outcome(compiled(request), answer); };
  EXPECT_EQ(with(kWeatherCall), "");
  EXPECT_EQ(with(replaced(kWeatherCall, "\n", "")), "");
  EXPECT_EQ(with("<tool_calls>\n<tool_call>get<tool_sep>\n</tool_call>\n</tool_calls>"), "");
  EXPECT_EQ(
      with(
          "<tool_calls>\n<tool_call>get<tool_sep>\n</tool_call>\n<tool_call>get_all<tool_sep>\n</tool_call>\n"
          "</tool_calls>"),
      "");
  EXPECT_EQ(with("Hello"), "Hello");
  EXPECT_EQ(with("<tool_calls>\n</tool_calls>"), "</tool_calls:opensource>");
  EXPECT_EQ(with("<tool_calls>\n<tool_call>get<tool_sep>\n</tool_call>\n"), "open");
  EXPECT_EQ(with(std::string(kWeatherCall) + "Hello"), "Hello");
  EXPECT_EQ(with("<tool_calls>\n<tool_call>get<tool_call>"), "<tool_call:opensource>");
  EXPECT_NE(with("<tool_calls>\n<tool_call>got<tool_sep>"), "open");
  // An argument that is required is missing; one comes twice; one is unknown; one is out of its bounds.
  const std::string begin = "<tool_calls>\n<tool_call>get_weather<tool_sep>\n";
  const auto pair = [](const std::string& key, const std::string& value) {
    return fmt::format("<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", key, value);
  };
  EXPECT_EQ(with(begin + pair("days", "3") + "</tool_call>"), "</tool_call:opensource>");
  EXPECT_EQ(with(begin + pair("days", "3") + pair("city", "") + "</tool_call>\n</tool_calls>"), "");
  EXPECT_NE(with(begin + pair("days", "3") + pair("days", "4")), "open");
  EXPECT_NE(with(begin + pair("town", "Graz")), "open");
  EXPECT_EQ(with(begin + pair("days", "14")), "open");
  EXPECT_NE(with(begin + pair("days", "15")), "open");
  EXPECT_EQ(with(begin + pair("unit", "celsius")), "open");
  EXPECT_NE(with(begin + pair("unit", "kelvin")), "open");
  EXPECT_EQ(with(begin + pair("city", "{\"like\": JSON} \"3\"\n\nüß 🙂")), "open");
  EXPECT_EQ(with(begin + pair("city", "a<think>b")), "<think:opensource>");
}

TEST(AnswerConstraint, ValuesAreTypedAsTheParserTypesThem) {
  Json request = many_tools();
  request["tool_choice"] = json(R"({"type": "function", "function": {"name": "mixed"}})");
  const auto value = [&](const std::string& key, const std::string& text) {
    return outcome(compiled(request),
                   fmt::format("<tool_calls>\n<tool_call>mixed<tool_sep>\n<arg_key>{}</arg_key>\n"
                               "<arg_value>{}</arg_value>\n",
                               key, text)) == "open";
  };
  EXPECT_TRUE(value("id", "12") && value("id", "any text") && value("note", "null") && value("note", ""));
  EXPECT_TRUE(value("code", "AB-123"));
  EXPECT_FALSE(value("code", "AB-1234") || value("code", "xAB-123"));
  EXPECT_TRUE(value("ratio", "-1.5e3"));
  EXPECT_FALSE(value("ratio", "1.5.") || value("ratio", "\"1\""));
  EXPECT_TRUE(value("short", "üüüüü"));
  EXPECT_FALSE(value("short", "üüüüüü") || value("short", ""));
  EXPECT_TRUE(value("tags", "text") && value("tags", "[1, 2]") && value("tags", ""));
  EXPECT_FALSE(value("tags", "[\"a\"]") || value("tags", " [1]") || value("tags", "{}"));
  EXPECT_TRUE(value("level", "low") && value("level", "2") && value("level", "null"));
  EXPECT_FALSE(value("level", "high") || value("level", "3") || value("level", "\"low\""));
}

TEST(AnswerConstraint, TheNamedToolAloneAndOnce) {
  Json request = many_tools();
  request["tool_choice"] = json(R"({"type": "function", "function": {"name": "get"}})");
  request["parallel_tool_calls"] = false;
  for (unsigned seed = 0; seed < 5; ++seed) {
    const Walk w = walk(compiled(request), seed);
    const Answer answer = parsed(w.tokens, request);
    ASSERT_TRUE(w.ended);
    EXPECT_THAT(answer.calls, testing::ElementsAre(Answer::Call{"get", "{}"}));
    EXPECT_EQ(answer.content, "");
  }
  EXPECT_NE(outcome(compiled(request), kWeatherCall), "");
  request.erase("tool_choice");
  const std::string two =
      replaced(kWeatherCall, "</tool_calls>", "<tool_call>get<tool_sep>\n</tool_call>\n</tool_calls>");
  EXPECT_EQ(outcome(compiled(request), kWeatherCall), "");
  EXPECT_EQ(outcome(compiled(request), two), "<tool_call:opensource>");
  request["parallel_tool_calls"] = true;
  EXPECT_EQ(outcome(compiled(request), two), "");
}

TEST(AnswerConstraint, AutomaticIsTextOrWholeCalls) {
  const Json request = many_tools();
  EXPECT_EQ(outcome(compiled(request), ""), "");
  EXPECT_EQ(outcome(compiled(request), "Any text: <b> & \"x\"\n"), "");
  EXPECT_EQ(outcome(compiled(request), fmt::format("I look it up.\n{}", kWeatherCall)), "");
  EXPECT_EQ(outcome(compiled(request), fmt::format("{}x", kWeatherCall)), "x");
  EXPECT_EQ(outcome(compiled(request), "<tool_call>get<tool_sep>"), "<tool_call:opensource>");
  EXPECT_EQ(outcome(compiled(request), "text<think>"), "<think:opensource>");
  EXPECT_EQ(outcome(compiled(request), "text</think>"), "</think:opensource>");
  int calls = 0, texts = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Walk w = walk(compiled(request), seed);
    if (!w.ended) continue;
    const Answer answer = parsed(w.tokens, request);
    expect_calls(answer, w, request);
    ++(answer.calls.empty() ? texts : calls);
  }
  EXPECT_GT(calls, 2);
  EXPECT_GT(texts, 2);
}

TEST(AnswerConstraint, NoneForbidsCalls) {
  Json request = many_tools();
  request["tool_choice"] = "none";
  AnswerConstraint constraint = compiled(request);
  const Mask mask = constraint.mask().value();
  for (int32_t token = 0; token < tiny().tokenizer.vocabulary_size(); ++token) {
    const bool free = !tiny().tokenizer.is_control(token) || token == tiny().eos();
    EXPECT_TRUE(free || !allows(mask, token)) << token;
  }
  EXPECT_EQ(outcome(std::move(constraint), "Text."), "");
  EXPECT_EQ(outcome(compiled(request), kWeatherCall), "<tool_calls:opensource>");
}

Json with_schema(std::string_view schema) {
  return {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", json(schema)}}}}}};
}

TEST(AnswerConstraint, JsonAnswersFitTheirSchema) {
  const std::vector<std::string> schemas = {
      R"({"type": "object"})",
      R"({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "number"}}},
          "required": ["a"], "additionalProperties": false})",
      R"({"anyOf": [{"type": "integer", "minimum": -5, "maximum": 5}, {"const": "x"}, {"type": "boolean"}]})",
      R"({"type": "array", "items": {"enum": ["é", "\"", "a\\b", 1.5, null, [1], {"k": {}}]}, "minItems": 1, "maxItems": 3})",
      R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"},
          "l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}}, "required": ["v"], "additionalProperties": false}}})",
      R"({"type": "string", "pattern": "^[a-f]{2,4}$"})",
      R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                    {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}]})",
  };
  for (const std::string& schema : schemas) {
    SCOPED_TRACE(schema);
    int ended = 0;
    for (unsigned seed = 0; seed < 12; ++seed) {
      const Walk w = walk(compiled(with_schema(schema)), seed, 1500);
      if (!w.ended) continue;
      ++ended;
      const std::string text = parsed(w.tokens, Json::object()).content;
      const Result<Json> value = parse_json(text);
      ASSERT_TRUE(value) << text;
      EXPECT_TRUE(is_valid(*value, json(schema))) << text;
    }
    EXPECT_GT(ended, 6);
  }
}

TEST(AnswerConstraint, JsonMayHaveTheSpacesOfChatTemplatesAndNoOthers) {
  const Json request = with_schema(
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
          "required": ["a", "b"], "additionalProperties": false})");
  EXPECT_EQ(outcome(compiled(request), R"({"a": 1, "b": 2})"), "");
  EXPECT_EQ(outcome(compiled(request), R"({"a":1,"b":2})"), "");
  EXPECT_NE(outcome(compiled(request), R"({"a":  1,"b":2})"), "");
  EXPECT_NE(outcome(compiled(request), "{\n\"a\": 1, \"b\": 2}"), "");
  EXPECT_NE(outcome(compiled(request), R"({"a": 1})"), "");
  EXPECT_EQ(outcome(compiled(request), R"({"a": 1, "b": 2)"), "open");
}

TEST(AnswerConstraint, AFormatWithToolsIsOneOrTheOther) {
  Json request = many_tools();
  request["response_format"] = {{"type", "json_object"}};
  EXPECT_EQ(outcome(compiled(request), R"({"a": [1, {"b": null}]})"), "");
  EXPECT_EQ(outcome(compiled(request), kWeatherCall), "");
  EXPECT_NE(outcome(compiled(request), "Hello"), "");
  EXPECT_NE(outcome(compiled(request), fmt::format("{{}}{}", kWeatherCall)), "");
  EXPECT_NE(outcome(compiled(request), R"([1])"), "");
}

TEST(AnswerConstraint, RegularExpressionsChoicesAndGrammars) {
  const auto under = [](const char* key, const Json& value, const std::string& answer) {
    return outcome(compiled({{"structured_outputs", {{key, value}}}}), answer);
  };
  EXPECT_EQ(under("regex", R"(\d+/\d+|[a-z "]*!)", "10/25"), "");
  EXPECT_EQ(under("regex", R"(\d+/\d+|[a-z "]*!)", "a \"b\"!"), "");
  EXPECT_EQ(under("regex", R"(\d+/\d+|[a-z "]*!)", "10"), "open");
  EXPECT_NE(under("regex", R"(\d+/\d+|[a-z "]*!)", "A"), "");
  const Json choices = Json::array({"yes", "no \"quoted\"", "yes, sir", "ünder\n"});
  for (const Json& choice : choices) EXPECT_EQ(under("choice", choices, choice), "");
  EXPECT_EQ(under("choice", choices, "ye"), "open");
  EXPECT_NE(under("choice", choices, "maybe"), "");
  EXPECT_EQ(under("choice", Json::array({"", "a"}), ""), "");
  EXPECT_EQ(under("choice", Json::array({"", "a"}), "a"), "");
  EXPECT_NE(under("choice", Json::array({"", "a"}), "b"), "");
  EXPECT_EQ(under("choice", Json::array({""}), ""), "");
  EXPECT_NE(under("choice", Json::array({""}), "a"), "");
  const char* sums = "start: sum\nsum: NUMBER | sum \"+\" NUMBER | \"(\" sum \")\"\nNUMBER: /[0-9]{1,3}/\n";
  EXPECT_EQ(under("grammar", sums, "(1+22)"), "");
  EXPECT_EQ(under("grammar", sums, "(1+22"), "open");
  EXPECT_NE(under("grammar", sums, "1++"), "");
  Json both = many_tools();
  both["structured_outputs"] = {{"grammar", sums}};
  EXPECT_EQ(outcome(compiled(both), "12"), "");
  EXPECT_EQ(outcome(compiled(both), kWeatherCall), "");
}

// As Codex sends it with its tool apply_patch.
constexpr const char* kPatchGrammar = R"(start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
)";

TEST(AnswerConstraint, CustomToolsInputFollowsItsGrammar) {
  const auto patching = [](ResponseFormat::Kind kind, const char* source) {
    AnswerForm made;
    ToolForm& tool = made.tools.emplace_back();
    tool.name = "apply_patch";
    tool.parameters = Json::parse(
        R"({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
            "additionalProperties": false})");
    tool.input.kind = kind;
    tool.input.source = source;
    return made;
  };
  const auto with = [&](const AnswerForm& wanted, const std::string& input) {
    return outcome(tiny().grammars.compile(wanted, false).value(),
                   "<tool_calls>\n<tool_call>apply_patch<tool_sep>\n<arg_key>input</arg_key>\n<arg_value>" +
                       input + "</arg_value>\n</tool_call>\n</tool_calls>");
  };
  const AnswerForm patch = patching(ResponseFormat::Kind::lark, kPatchGrammar);
  EXPECT_EQ(with(patch, "*** Begin Patch\n*** Add File: a b.txt\n+one\n+\n*** End Patch"), "");
  EXPECT_EQ(
      with(patch,
           "*** Begin Patch\n*** Update File: x.py\n@@ def f():\n-  return 1\n+  return 2\n*** End Patch\n"),
      "");
  EXPECT_NE(with(patch, "*** Begin Patch\n*** End Patch"), "");
  EXPECT_NE(with(patch, "Here is a patch"), "");
  const AnswerForm number = patching(ResponseFormat::Kind::regex, "[0-9]+(px|em)");
  EXPECT_EQ(with(number, "12px"), "");
  EXPECT_NE(with(number, "12"), "");
  EXPECT_NE(with(number, "a12px"), "");
  const Result<AnswerConstraint> broken =
      tiny().grammars.compile(patching(ResponseFormat::Kind::lark, "start: nothing\n"), false);
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().message, "tools: the format of apply_patch: at 1(8): unknown name: \"nothing\"");
}

TEST(AnswerConstraint, NothingBindsInAThoughtButItsFrame) {
  const Json request = with_schema(R"({"type": "null"})");
  AnswerConstraint constraint = compiled(request, true);
  const Mask mask = constraint.mask().value();
  for (int32_t token = 0; token < tiny().tokenizer.vocabulary_size(); ++token) {
    const std::optional<Tag> tag = tiny().tags.tag(token);
    const bool tool = tag && *tag >= Tag::tool_calls && *tag <= Tag::end_tool_response;
    EXPECT_EQ(allows(mask, token), !tool && token != tiny().eos()) << token;
  }
  EXPECT_EQ(outcome(compiled(request, true), "I think {so}.</think>null"), "");
  EXPECT_EQ(outcome(compiled(request, true), "so"), "open");
  EXPECT_NE(outcome(compiled(request, true), "so</think>nil"), "");
  EXPECT_EQ(outcome(compiled(request, true), "so<tool_calls>"), "<tool_calls:opensource>");
  Json tools = many_tools();
  tools["tool_choice"] = "required";
  EXPECT_EQ(outcome(compiled(tools, true), fmt::format("hm</think>{}", kWeatherCall)), "");
  EXPECT_EQ(outcome(compiled(tools, true), "hm</think>no"), "no");
}

TEST(AnswerConstraint, EndsAThoughtAtItsLimit) {
  const int32_t end_think = tiny().tags.id(Tag::end_think);
  AnswerConstraint constraint = compiled({{"thinking_token_budget", 3}}, true);
  for (const int32_t token : {5, 6, 7}) {
    EXPECT_TRUE(allows(constraint.mask().value(), end_think));
    EXPECT_TRUE(allows(constraint.mask().value(), token));
    ASSERT_TRUE(constraint.accept(token));
  }
  const Mask forced = constraint.mask().value();
  for (int32_t token = 0; token < tiny().tokenizer.vocabulary_size(); ++token) {
    EXPECT_EQ(allows(forced, token), token == end_think);
  }
  EXPECT_FALSE(constraint.accept(5));
  ASSERT_TRUE(constraint.accept(end_think));
  EXPECT_THAT(constraint.mask().value(), IsEmpty());
  ASSERT_TRUE(constraint.accept(5));
  ASSERT_TRUE(constraint.accept(tiny().eos()));

  AnswerConstraint at_once = compiled({{"thinking_token_budget", 0}}, true);
  EXPECT_FALSE(at_once.accept(5));
  EXPECT_TRUE(at_once.accept(end_think));
  // Where no thought is open, there is nothing to limit.
  EXPECT_THAT(compiled({{"thinking_token_budget", 0}}, false).mask().value(), IsEmpty());
}

TEST(AnswerConstraint, ManyAnswersOfOneGrammarAreApart) {
  Json request = many_tools();
  AnswerConstraint a = compiled(request), b = compiled(request);
  for (const int32_t token : tokens_of("<tool_calls>\n<tool_call>get<tool_sep>", tiny()))
    ASSERT_TRUE(a.accept(token));
  EXPECT_EQ(outcome(std::move(b), "text"), "");
  EXPECT_EQ(outcome(std::move(a), "\n</tool_call></tool_calls>"), "");
}

TEST(AnswerConstraint, TagsMayHaveNoSuffix) {
  const TempDir directory;
  directory.copy("tokenizer.json", ":opensource", "");
  const Model bare(directory.path());
  ASSERT_EQ(bare.tags.suffix(), "");
  Json request = many_tools();
  request["tool_choice"] = "required";
  EXPECT_EQ(outcome(compiled(request, true, bare), fmt::format("hm</think>{}", kWeatherCall), bare), "");
  EXPECT_EQ(outcome(compiled(request, false, bare), "text", bare), "text");
}

TEST(AnswerConstraint, TellsWhatASchemaHasThatIsNotSupported) {
  EXPECT_THAT(error_of(with_schema(R"({"type": "object", "properties": {"a": {"not": {"type": "null"}}}})")),
              testing::AllOf(StartsWith("response_format.json_schema.schema: "), HasSubstr("not")));
  EXPECT_THAT(error_of(with_schema(R"({"type": "wrong"})")),
              StartsWith("response_format.json_schema.schema: "));
  EXPECT_THAT(error_of(with_schema(R"({"$ref": "#/$defs/missing"})")), HasSubstr("missing"));
  EXPECT_THAT(error_of(with_schema("{\"type\": \"string\", \"pattern\": \"(?=a)\"}")),
              StartsWith("response_format.json_schema.schema: "));
  EXPECT_EQ(error_of({{"structured_outputs", {{"json", false}}}}),
            "response_format.json_schema.schema: no value is allowed by the schema false");
  EXPECT_THAT(error_of({{"structured_outputs", {{"regex", "(a"}}}}),
              StartsWith("structured_outputs.regex: "));
  EXPECT_THAT(error_of({{"structured_outputs", {{"grammar", "start: missing"}}}}),
              StartsWith("structured_outputs.grammar: "));
  EXPECT_EQ(error_of({{"structured_outputs", {{"regex", std::string(70'000, 'a')}}}}),
            "structured_outputs.regex: a grammar may have 65536 bytes, found 70000");
  EXPECT_EQ(
      error_of(with_schema(R"({"items": {"type": "integer", "multipleOf": 10001}})")),
      "response_format.json_schema.schema: `multipleOf` is supported from 0.0001 to 10000, found 10001");
  EXPECT_THAT(error_of(with_schema(R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                       "b": {"$ref": "#/$defs/a"}}})")),
              StartsWith("response_format.json_schema.schema: there is no text that fits, or too much work"));
  const std::string nested = std::string(20'000, '(') + "a" + std::string(20'000, ')');
  EXPECT_LT(error_of({{"structured_outputs", {{"regex", nested}}}}).size(), 400u);
  std::string deep;
  for (int i = 0; i < 101; ++i) deep += R"({"items":)";
  EXPECT_EQ(error_of(with_schema(deep + "1" + std::string(101, '}'))),
            "response_format.json_schema.schema: the schema nests more than 100 deep");
}

Json with_parameters(std::string_view parameters, bool strict) {
  Json function{{"name", "f"}, {"strict", strict}, {"parameters", json(parameters)}};
  return {{"tools", Json::array({{{"type", "function"}, {"function", function}}})},
          {"tool_choice", "required"}};
}

TEST(AnswerConstraint, WhatAToolCannotHaveIsAnErrorIfStrictAndLeftAsideIfNot) {
  const char* format = R"({"type": "object", "properties": {"a": {"type": "string", "format": "color"},
                           "b": {"type": "object", "propertyNames": {"pattern": "x"}}}})";
  EXPECT_EQ(error_of(with_parameters(format, true)),
            "tools[0].function.parameters.properties.a: `format` is not supported for a string argument");
  const std::string begin = "<tool_calls><tool_call>f<tool_sep>";
  const auto lax = [&](const char* parameters, const std::string& key, const std::string& value) {
    return outcome(compiled(with_parameters(parameters, false)),
                   fmt::format("{}<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call></tool_calls>",
                               begin, key, value));
  };
  EXPECT_EQ(lax(format, "a", "any"), "");
  EXPECT_EQ(lax(format, "b", R"({"y": 1})"), "");
  EXPECT_NE(lax(format, "b", "[1]"), "");

  const char* choice =
      R"({"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}]})";
  EXPECT_EQ(error_of(with_parameters(choice, true)),
            "tools[0].function.parameters: `anyOf` is not supported for the arguments of a tool");
  EXPECT_EQ(lax(choice, "a", "1"), "");
  EXPECT_EQ(lax(choice, "b", "free"), "");

  const char* wrong =
      R"({"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/nowhere"}}}})";
  EXPECT_THAT(error_of(with_parameters(wrong, true)),
              StartsWith("tools[0].function.parameters.properties.a: "));
  EXPECT_EQ(lax(wrong, "a", R"(["anything"])"), "");
  EXPECT_NE(lax(wrong, "a", "text"), "");
}

TEST(AnswerConstraint, OtherArgumentsThanTheDeclaredOnes) {
  const char* open = R"({"type": "object", "properties": {"a": {"type": "integer"}},
                         "additionalProperties": {"type": "boolean"}, "required": ["b"]})";
  const auto with = [&](const std::string& pairs) {
    return outcome(compiled(with_parameters(open, true)),
                   fmt::format("<tool_calls><tool_call>f<tool_sep>{}</tool_call></tool_calls>", pairs));
  };
  const std::string b = "<arg_key>b</arg_key><arg_value>true</arg_value>";
  EXPECT_EQ(with(b), "");
  EXPECT_EQ(with(b + replaced(b, "b<", "c<")), "");
  EXPECT_EQ(with(""), "</tool_call:opensource>");
  EXPECT_NE(with(b + b), "");
  EXPECT_NE(with(replaced(b, "true", "1")), "");
}

TEST(AnswerConstraint, LeavesAsideEveryMultipleThatIsTooFine) {
  const char* fine = R"({"properties": {"a": {"type": "array", "prefixItems": [
      {"type": "number", "multipleOf": 1e-9}, {"type": "integer", "multipleOf": 20000}]}}})";
  EXPECT_EQ(error_of(with_parameters(fine, false)), "no error");
  EXPECT_EQ(
      error_of(with_parameters(fine, true)),
      "tools[0].function.parameters.properties.a: `multipleOf` is supported from 0.0001 to 10000, found "
      "1e-9");
}

TEST(AnswerConstraint, BoundsWhatToolsBring) {
  std::string many = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 65; ++i)
    many += fmt::format("{}\"p{}\": {{\"type\": \"string\"}}", i == 0 ? "" : ", ", i);
  EXPECT_EQ(error_of(with_parameters(many + "}}", false)),
            "tools[0].function.parameters: at most 64 properties are supported, found 65");
  EXPECT_EQ(
      error_of(with_parameters(R"({"properties": {" a": {}}})", false)),
      "tools[0].function.parameters.properties: expected names of 1 to 1024 bytes without white space at "
      "their ends, found \" a\"");
  EXPECT_EQ(error_of(with_parameters(R"({"required": [1]})", false)),
            "tools[0].function.parameters.required: expected strings, found number");
  EXPECT_EQ(error_of(with_parameters(
                R"({"properties": {"a": {"type": "string", "maxLength": 1, "minLength": 2}}})", true)),
            "tools[0].function.parameters.properties.a: the schema allows no value");
  // Each of these arguments has a copy of all that it may refer to.
  std::string copies =
      fmt::format(R"({{"$defs": {{"a": {{"type": "integer"}}, "b": {{"const": "{}"}}}}, "properties": {{)",
                  std::string(1 << 20, 'x'));
  for (int i = 0; i < 60; ++i)
    copies += fmt::format(R"({}"p{}": {{"$ref": "#/$defs/a"}})", i == 0 ? "" : ", ", i);
  EXPECT_THAT(error_of(with_parameters(copies + "}}", false)),
              StartsWith("the schemas of tools and response_format are too large: at most 4194304 bytes in "
                         "all, found 4205272"));
  const Json large = {{"structured_outputs", {{"json", {{"const", std::string(5 << 20, 'x')}}}}}};
  EXPECT_THAT(error_of(large),
              StartsWith("the schemas of tools and response_format are too large: at most 4194304"));
}

TEST(AnswerConstraint, ListsOfThousandsAreFollowed) {
  Json many = Json::array();
  for (int i = 0; i < 5'000; ++i) many.push_back(fmt::format("value{}", i));
  const AnswerConstraint choice = compiled({{"structured_outputs", {{"choice", many}}}});
  EXPECT_EQ(outcome(choice.copy(), "value4999"), "");
  EXPECT_NE(outcome(choice.copy(), "value5000"), "");
  const Json parameters{{"properties", {{"a", {{"type", "string"}, {"enum", many}}}}}, {"required", {"a"}}};
  const AnswerConstraint call = compiled(with_parameters(to_json_text(parameters), true));
  const std::string answer =
      "<tool_calls><tool_call>f<tool_sep><arg_key>a</arg_key><arg_value>value77</arg_value></tool_call>"
      "</tool_calls>";
  EXPECT_EQ(outcome(call.copy(), answer), "");
  EXPECT_NE(outcome(call.copy(), replaced(answer, "value77", "value")), "");
}

TEST(AnswerConstraint, CopiesGoOnByThemselves) {
  AnswerConstraint first = compiled({{"structured_outputs", {{"regex", "[ab]x|cy"}}}, {"tools", nullptr}});
  AnswerConstraint fresh = first.copy();
  EXPECT_TRUE(first.accept(tokens_of("a", tiny())[0]));
  AnswerConstraint second = first.copy();
  EXPECT_EQ(second.mask().value(), first.mask().value());
  EXPECT_EQ(outcome(std::move(first), "x"), "");
  EXPECT_EQ(outcome(std::move(second), "y"), "y");
  EXPECT_EQ(outcome(std::move(fresh), "cy"), "");
  // Without a grammar, and in a thought.
  AnswerConstraint thought = compiled({{"thinking_token_budget", 1}}, true);
  EXPECT_TRUE(thought.accept(tokens_of("a", tiny())[0]));
  EXPECT_FALSE(thought.copy().accept(tokens_of("a", tiny())[0]));
}

TEST(AnswerConstraint, RefusesTokensByName) {
  AnswerConstraint constraint = compiled(with_schema(R"({"type": "null"})"));
  const int32_t token = tokens_of("<tool_calls>", tiny())[0];
  EXPECT_THAT(constraint.accept(token).error().message,
              StartsWith(fmt::format(
                  "the token {} (\"<tool_calls:opensource>\") does not belong to the answer's grammar here: ",
                  token)));
  EXPECT_FALSE(constraint.accept(-1));
  EXPECT_FALSE(constraint.accept(1 << 30));
}

}  // namespace
}  // namespace tercet
