#include "text/schema.h"

#include <gtest/gtest.h>

namespace tercet {
namespace {

ValueTypes types(std::string_view schema_of_x, std::string_view more = "") {
  const auto parameters =
      parse_json(fmt::format(R"({{"type": "object", "properties": {{"x": {}}}{}}})", schema_of_x, more));
  EXPECT_TRUE(parameters);
  return argument_types(*parameters, "x");
}

TEST(Schema, ReadsTypes) {
  EXPECT_EQ(types(R"({"type": "string"})").types, kStringType);
  EXPECT_EQ(types(R"({"type": "integer"})").types, kIntegerType);
  EXPECT_EQ(types(R"({"type": "number"})").types, kIntegerType | kFractionType);
  EXPECT_EQ(types(R"({"type": ["string", "null"]})").types, kStringType | kNullType);
  EXPECT_EQ(types(R"({"type": ["array", "boolean", "object"]})").types,
            kArrayType | kBooleanType | kObjectType);
  EXPECT_EQ(types(R"({"type": "string", "nullable": true})").types, kStringType | kNullType);
  EXPECT_EQ(types(R"({})").types, kAnyType);
  EXPECT_EQ(types(R"(true)").types, kAnyType);
  EXPECT_EQ(types(R"({"type": "dict"})").types, kAnyType);
  EXPECT_EQ(types(R"({"type": 5})").types, kAnyType);
}

TEST(Schema, ReadsEnumAndConst) {
  const ValueTypes mixed = types(R"({"enum": ["auto", 1, null]})");
  EXPECT_EQ(mixed.types, kStringType | kIntegerType | kNullType);
  EXPECT_EQ(mixed.strings, std::vector<std::string>{"auto"});
  EXPECT_EQ(types(R"({"const": 1.5})").types, kFractionType);
  EXPECT_EQ(types(R"({"type": ["string", "integer"], "enum": ["1"]})").types, kStringType);
}

TEST(Schema, ReadsCombinations) {
  EXPECT_EQ(types(R"({"anyOf": [{"type": "string"}, {"type": "integer"}]})").types,
            kStringType | kIntegerType);
  EXPECT_EQ(types(R"({"oneOf": [{"type": "null"}, {"const": "a"}]})").types, kNullType | kStringType);
  EXPECT_EQ(types(R"({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "array"]}]})").types,
            kNullType);
  EXPECT_EQ(types(R"({"type": "number", "allOf": [{"type": "integer"}]})").types, kIntegerType);
  EXPECT_EQ(types(R"({"type": "string", "anyOf": [{"type": "integer"}]})").types,
            kAnyType);  // a contradiction
  EXPECT_EQ(types(R"({"anyOf": "x", "allOf": 1, "enum": 2})").types, kAnyType);
}

TEST(Schema, FollowsReferences) {
  const char* defs = R"(, "$defs": {"a/b~c": {"type": "string"}, "list": [{}, {"type": "null"}],
                      "loop": {"$ref": "#/$defs/loop"}, "one": {"$ref": "#/$defs/two"}, "two": {"type": "array"}})";
  EXPECT_EQ(types(R"({"$ref": "#/$defs/a~1b~0c"})", defs).types, kStringType);
  EXPECT_EQ(types(R"({"$ref": "#/$defs/one"})", defs).types, kArrayType);
  EXPECT_EQ(types(R"({"$ref": "#/$defs/list/1"})", defs).types, kNullType);
  EXPECT_EQ(types(R"({"$ref": "#"})", defs).types, kObjectType);
  for (const char* bad :
       {"#/$defs/loop", "#/$defs/none", "#/$defs/list/9", "#/$defs/list/x", "other.json", "#x"}) {
    EXPECT_EQ(types(fmt::format(R"({{"$ref": "{}"}})", bad), defs).types, kAnyType) << bad;
  }
}

TEST(Schema, EndsOnTreesThatReferToThemselves) {
  // Each level refers to the next twice: 2^40 paths.
  std::string defs = R"(, "$defs": {)";
  for (int i = 0; i < 40; ++i) {
    defs += fmt::format(R"("d{}": {{"anyOf": [{{"$ref": "#/$defs/d{}"}}, {{"$ref": "#/$defs/d{}"}}]}},)", i,
                        i + 1, i + 1);
  }
  defs += R"("d40": {"type": "string"}})";
  EXPECT_EQ(types(R"({"$ref": "#/$defs/d0"})", defs).types, kAnyType);
}

TEST(Schema, FindsProperties) {
  const Json parameters = *parse_json(
      R"({"$ref": "#/$defs/args", "$defs": {"args": {"allOf": [{"properties": {"a": {"type": "string"}}},
          {"anyOf": [{"properties": {"b": {"type": "null"}}}, {"$ref": "#/$defs/args"}]}]}}})");
  EXPECT_EQ(argument_types(parameters, "a").types, kStringType);
  EXPECT_EQ(argument_types(parameters, "b").types, kNullType);
  EXPECT_EQ(argument_types(parameters, "c").types, kAnyType);
  const Json open =
      *parse_json(R"({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "string"}})");
  EXPECT_EQ(argument_types(open, "a").types, kNullType);
  EXPECT_EQ(argument_types(open, "z").types, kStringType);
  EXPECT_EQ(argument_types(Json(), "a").types, kAnyType);
  EXPECT_EQ(argument_types(*parse_json(R"({"properties": [1], "additionalProperties": false})"), "a").types,
            kAnyType);
}

}  // namespace
}  // namespace tercet
