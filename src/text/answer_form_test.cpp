#include "text/answer_form.h"

#include <gmock/gmock.h>

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Result<AnswerForm> read(std::string_view json) { return AnswerForm::read(parse_json(json).value()); }

std::string error_of(std::string_view json) {
  const Result<AnswerForm> form = read(json);
  return form ? "no error" : form.error().message;
}

constexpr std::string_view kTwoTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "strict": true,
                  "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}},
                 {"type": "function", "function": {"name": "g"}}])";

std::string with_tools(std::string_view more) { return fmt::format("{{{}, {}}}", kTwoTools, more); }

TEST(AnswerForm, BindsNothingWhereNothingIsAskedFor) {
  const AnswerForm form =
      read(R"({"messages": [], "tools": null, "response_format": {"type": "text"}})").value();
  EXPECT_TRUE(form.free());
  EXPECT_THAT(form.tools, IsEmpty());
  EXPECT_EQ(form.tool_choice.kind, ToolChoice::Kind::automatic);
  EXPECT_TRUE(form.parallel_tool_calls);
  EXPECT_EQ(form.format.kind, ResponseFormat::Kind::text);
  EXPECT_FALSE(form.max_thinking_tokens);
}

TEST(AnswerForm, ReadsToolsAndTheirChoice) {
  const AnswerForm form = read(with_tools(R"("parallel_tool_calls": false)")).value();
  EXPECT_FALSE(form.free());
  ASSERT_EQ(form.tools.size(), 2u);
  EXPECT_EQ(form.tools[0].name, "f");
  EXPECT_TRUE(form.tools[0].strict);
  EXPECT_EQ(to_json_text(form.tools[0].parameters),
            R"({"type": "object", "properties": {"x": {"type": "integer"}}})");
  EXPECT_EQ(form.tools[1].name, "g");
  EXPECT_FALSE(form.tools[1].strict);
  EXPECT_EQ(to_json_text(form.tools[1].parameters), R"({"type": "object", "properties": {}})");
  EXPECT_FALSE(form.parallel_tool_calls);

  const auto choice = [](std::string_view json) {
    return read(with_tools(fmt::format(R"("tool_choice": {})", json))).value().tool_choice;
  };
  EXPECT_EQ(choice(R"("auto")").kind, ToolChoice::Kind::automatic);
  EXPECT_EQ(choice(R"("none")").kind, ToolChoice::Kind::none);
  EXPECT_EQ(choice(R"("required")").kind, ToolChoice::Kind::required);
  const ToolChoice named = choice(R"({"type": "function", "function": {"name": "g"}})");
  EXPECT_EQ(named.kind, ToolChoice::Kind::named);
  EXPECT_EQ(named.name, "g");
}

TEST(AnswerForm, ReadsFormatsOfText) {
  using Kind = ResponseFormat::Kind;
  const auto format = [](std::string_view json) { return read(json).value().format; };
  const auto object = format(R"({"response_format": {"type": "json_object"}})");
  EXPECT_EQ(object.kind, Kind::json_schema);
  EXPECT_EQ(to_json_text(object.schema), R"({"type": "object"})");
  const auto schema = format(
      R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}})");
  EXPECT_EQ(schema.kind, Kind::json_schema);
  EXPECT_EQ(to_json_text(schema.schema), R"({"type": "null"})");
  EXPECT_TRUE(schema.strict);
  EXPECT_FALSE(format(R"({"response_format": {"type": "json_schema",
                                              "json_schema": {"strict": false, "schema": {}}}})")
                   .strict);

  EXPECT_EQ(to_json_text(format(R"({"structured_outputs": {"json": {"type": "null"}}})").schema),
            R"({"type": "null"})");
  EXPECT_EQ(format(R"({"structured_outputs": {"json_object": true}})").kind, Kind::json_schema);
  EXPECT_EQ(format(R"({"structured_outputs": {"json_object": false}})").kind, Kind::text);
  const auto regex = format(R"({"structured_outputs": {"regex": "a+"}})");
  EXPECT_EQ(regex.kind, Kind::regex);
  EXPECT_EQ(regex.source, "a+");
  EXPECT_EQ(format(R"({"structured_outputs": {"grammar": "start: \"a\""}})").kind, Kind::lark);
  const auto choice = format(R"({"structured_outputs": {"choice": ["a", "b"]}})");
  EXPECT_EQ(choice.kind, Kind::choice);
  EXPECT_THAT(choice.choices, ElementsAre("a", "b"));
}

TEST(AnswerForm, ReadsTheLimitOnThinking) {
  const AnswerForm form = read(R"({"thinking_token_budget": 0})").value();
  EXPECT_EQ(form.max_thinking_tokens, 0);
  EXPECT_FALSE(form.free());
}

TEST(AnswerForm, RefusesWhatItCannotRead) {
  EXPECT_EQ(error_of(R"({"tools": {}})"), "tools: expected a list, found object");
  EXPECT_EQ(error_of(R"({"tools": [{"type": "web_search"}]})"),
            "tools[0].type: expected \"function\", found \"web_search\"");
  EXPECT_EQ(error_of(R"({"tools": [{}]})"), "tools[0].function: expected an object, found nothing");
  EXPECT_EQ(error_of(R"({"tools": [{"function": {"name": 1}}]})"),
            "tools[0].function.name: expected a string, found number");
  EXPECT_EQ(error_of(R"({"tools": [{"function": {"name": "a b"}}]})"),
            "tools[0].function.name: expected 1 to 256 bytes without white space, braces and quotes, found "
            "\"a b\"");
  EXPECT_EQ(error_of(R"({"tools": [{"function": {"name": "f", "parameters": 1}}]})"),
            "tools[0].function.parameters: expected a JSON schema (an object), found number");
  EXPECT_EQ(error_of(R"({"tools": [{"function": {"name": "f"}}, {"function": {"name": "f"}}]})"),
            "tools[1].function.name: \"f\" was declared before");
  EXPECT_EQ(error_of(R"({"tool_choice": "required"})"), "tool_choice: \"required\" needs tools, found none");
  EXPECT_EQ(
      error_of(with_tools(R"("tool_choice": "any")")),
      "tool_choice: expected \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": "
      "{\"name\": …}}, found \"any\"");
  EXPECT_EQ(error_of(with_tools(R"("tool_choice": {"type": "function", "function": {"name": "h"}})")),
            "tool_choice.function.name: no tool has the name \"h\"");
  EXPECT_EQ(error_of(R"({"parallel_tool_calls": 1})"),
            "parallel_tool_calls: expected true or false, found 1");
  EXPECT_EQ(error_of(R"({"response_format": "json"})"), "response_format: expected an object, found string");
  EXPECT_EQ(error_of(R"({"response_format": {"type": "xml"}})"),
            "response_format.type: expected \"text\", \"json_object\" or \"json_schema\", found \"xml\"");
  EXPECT_EQ(error_of(R"({"response_format": {"type": "json_schema", "json_schema": {}}})"),
            "response_format.json_schema.schema: is missing");
  EXPECT_EQ(error_of(R"({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}})"),
            "structured_outputs: response_format asks for another form");
  EXPECT_EQ(
      error_of(R"({"structured_outputs": {"regex": "a", "choice": ["a"]}})"),
      "structured_outputs: expected one of json, json_object, regex, choice and grammar, found several");
  EXPECT_EQ(error_of(R"({"structured_outputs": {"ebnf": "a"}})"),
            "structured_outputs.ebnf: expected json, json_object, regex, choice or grammar");
  EXPECT_EQ(error_of(R"({"structured_outputs": {"choice": []}})"),
            "structured_outputs.choice: expected a list of at least one string, found []");
  EXPECT_EQ(error_of(R"({"structured_outputs": {"choice": [1]}})"),
            "structured_outputs.choice[0]: expected a string, found number");
  EXPECT_EQ(error_of(R"({"thinking_token_budget": -1})"),
            "thinking_token_budget: expected a whole number from 0 to 2147483647, found -1");
}

}  // namespace
}  // namespace tercet
