#include "text/call_arguments.h"

#include <gmock/gmock.h>

namespace tercet {
namespace {

using testing::ElementsAre;
using Pairs = std::vector<std::pair<std::string, std::string>>;

Json schema(std::string_view properties) {
  return parse_json(fmt::format(R"({{"type": "object", "properties": {}}})", properties)).value();
}

std::string written(const Json& parameters, const Pairs& pairs) {
  CallArguments arguments(parameters);
  std::string out;
  for (const auto& [key, value] : pairs) {
    out += arguments.begin_value(key);
    for (const char c : value) out += arguments.add(std::string(1, c));  // ASCII
    out += arguments.end_value();
  }
  return out + arguments.finish();
}

TEST(CallArguments, StringsStayStrings) {
  const Json parameters = schema(R"({"s": {"type": "string"}})");
  for (const char* value :
       {"x", "4711", "null", "true", "{\"a\": 1}", "\"q\"", " \n x\t", "", "1.50", "123_456"}) {
    EXPECT_EQ(written(parameters, {{"s", value}}), "{\"s\": " + to_json_text(value) + "}");
  }
}

TEST(CallArguments, OtherTypesAreJson) {
  const Json parameters =
      schema(R"({"i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
      "a": {"type": "array"}, "o": {"type": "object"}, "z": {"type": "null"}})");
  EXPECT_EQ(
      written(parameters, {{"i", " 10\n"},
                           {"n", "1.50"},
                           {"b", "false"},
                           {"a", "[1,\"two\" , {}]"},
                           {"o", "{\"k\":null,\"j\":1e3}"},
                           {"z", "null"}}),
      R"({"i": 10, "n": 1.50, "b": false, "a": [1, "two", {}], "o": {"k": null, "j": 1e3}, "z": null})");
  EXPECT_EQ(
      written(parameters, {{"i", "ten"}, {"n", " 1_0 "}, {"b", "True"}, {"a", "[1"}, {"o", "{'k': 1}"}}),
      R"({"i": "ten", "n": " 1_0 ", "b": "True", "a": "[1", "o": "{'k': 1}"})");
  EXPECT_EQ(written(parameters, {{"i", "\"10\""}, {"b", "1"}}), R"({"i": "10", "b": 1})");
}

TEST(CallArguments, MixedTypes) {
  const Json parameters =
      schema(R"({"sn": {"type": ["string", "null"]}, "si": {"type": ["string", "integer"]},
      "so": {"anyOf": [{"type": "string"}, {"type": "object"}]}, "e": {"enum": ["1", "auto", 2]},
      "c": {"enum": ["null", null]}})");
  EXPECT_EQ(written(parameters, {{"sn", "null"}}), R"({"sn": null})");
  EXPECT_EQ(written(parameters, {{"sn", "nul"}}), R"({"sn": "nul"})");
  EXPECT_EQ(written(parameters, {{"sn", "nullable"}}), R"({"sn": "nullable"})");
  EXPECT_EQ(written(parameters, {{"sn", ""}}), R"({"sn": ""})");
  EXPECT_EQ(written(parameters, {{"si", "5"}}), R"({"si": 5})");
  EXPECT_EQ(written(parameters, {{"si", "5.0"}}), R"({"si": "5.0"})");
  EXPECT_EQ(written(parameters, {{"si", "\"5\""}}), R"({"si": "\"5\""})");
  EXPECT_EQ(written(parameters, {{"si", "five"}}), R"({"si": "five"})");
  EXPECT_EQ(written(parameters, {{"so", "{\"a\":1}"}}), R"({"so": {"a": 1}})");
  EXPECT_EQ(written(parameters, {{"so", "[1]"}}), R"({"so": "[1]"})");
  EXPECT_EQ(written(parameters, {{"e", "1"}}), R"({"e": "1"})");
  EXPECT_EQ(written(parameters, {{"e", "2"}}), R"({"e": 2})");
  EXPECT_EQ(written(parameters, {{"e", "auto"}}), R"({"e": "auto"})");
  EXPECT_EQ(written(parameters, {{"c", "null"}}), R"({"c": "null"})");
}

TEST(CallArguments, UnknownTypes) {
  for (const Json& parameters : {Json(), schema("{}"), Json(5)}) {
    EXPECT_EQ(
        written(parameters, {{"a", "metric"}, {"b", "3"}, {"c", "\"q\""}, {"d", " x "}, {"e", "1e999"}}),
        R"({"a": "metric", "b": 3, "c": "q", "d": " x ", "e": "1e999"})");
  }
  EXPECT_EQ(written(Json(), {}), "{}");
}

TEST(CallArguments, TheFirstOfEqualKeysCounts) {
  EXPECT_EQ(written(schema(R"({"s": {"type": "string"}})"), {{"s", "1"}, {"t", "2"}, {"s", "3"}, {"t", "4"}}),
            R"({"s": "1", "t": 2})");
}

TEST(CallArguments, StreamWhatIsCertain) {
  const Json parameters =
      schema(R"({"s": {"type": "string"}, "n": {"type": ["null", "string"]}, "i": {"type": "integer"}})");
  CallArguments arguments(parameters);
  std::vector<std::string> pieces;
  const auto value = [&](std::string_view key, const std::vector<std::string_view>& texts) {
    pieces.push_back(arguments.begin_value(key));
    for (const auto text : texts) pieces.push_back(arguments.add(text));
    pieces.push_back(arguments.end_value());
  };
  value("s", {"a\"", "é"});
  value("n", {"nu", "ll", "!"});
  value("i", {"1", "2"});
  EXPECT_THAT(pieces, ElementsAre("{\"s\": \"", "a\\\"", "é", "\"",      //
                                  ", \"n\": ", "", "", "\"null!", "\"",  //
                                  ", \"i\": ", "", "", "12"));
  EXPECT_EQ(arguments.finish(), "}");
}

TEST(CallArguments, FromAnObject) {
  EXPECT_EQ(CallArguments::from_object("\n{\"b\":1.50,\"a\":[ ]} "), R"({"b": 1.50, "a": []})");
  EXPECT_EQ(CallArguments::from_object("{}"), "{}");
  for (const char* text : {"", "[1]", "{", "{}{}", "5"})
    EXPECT_EQ(CallArguments::from_object(text), std::nullopt);
}

}  // namespace
}  // namespace tercet
