#include "text/json.h"

#include <gtest/gtest.h>

namespace tercet {
namespace {

std::string round_trip(std::string_view text) {
  const auto value = parse_json(text);
  return value ? to_json_text(*value) : "error: " + value.error().message;
}

TEST(Json, KeepsKeyOrderAndNumberSpelling) {
  EXPECT_EQ(
      round_trip(R"({"b":1.50,"a":[1e3,-0.0,1E+2,9223372036854775808123,0.1e-7],"c":18446744073709551615})"),
      R"({"b": 1.50, "a": [1e3, -0.0, 1E+2, 9223372036854775808123, 0.1e-7], "c": 18446744073709551615})");
}

TEST(Json, WritesAsPython) {
  // json.dumps(…, ensure_ascii=False)
  EXPECT_EQ(
      round_trip(
          R"({ "é\u00e9" : "\ud83d\ude00\u2028 \/\u0007\b\f\n\r\t\"\\\u007f<>&'" , "e" : [ ] , "o" : { } })"),
      "{\"éé\": \"😀\u2028 /\\u0007\\b\\f\\n\\r\\t\\\"\\\\\x7f<>&'\", \"e\": [], \"o\": {}}");
  EXPECT_EQ(round_trip(" [true, false, null] "), "[true, false, null]");
}

TEST(Json, LastOfEqualKeysCountsInPlaceOfTheFirst) {
  EXPECT_EQ(round_trip(R"({"a": 1, "b": 2, "a": 3, "c": 4, "a": 5, "b": {"x": 1, "x": 2}})"),
            R"({"a": 5, "b": {"x": 2}, "c": 4})");
}

TEST(Json, RefusesWhatIsNoJson) {
  EXPECT_EQ(round_trip("{\"a\": 1,}"),
            "error: parse error at line 1, column 9: syntax error while parsing object key - unexpected '}'; "
            "expected string literal");
  for (const char* text : {"", "nul", "True", "01", "1.", ".5", "+1", "NaN", "Infinity", "'a'", "[1 2]",
                           "{\"a\"}", "1 2", "\"\\ud800\"", "\"\xff\"", "\"\n\"", "1e999"}) {
    EXPECT_FALSE(parse_json(text)) << text;
  }
}

TEST(Json, BoundsDepth) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth)));
  EXPECT_EQ(parse_json(nested(kMaxJsonDepth + 1)).error().message, "nested more than 128 deep");
  EXPECT_EQ(parse_json(std::string(1 << 20, '[')).error().message, "nested more than 128 deep");
}

TEST(Json, ManyKeysStayFast) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += fmt::format("\"{}\": {},", i, i);
  text.back() = '}';
  const auto value = parse_json(text);
  ASSERT_TRUE(value);
  EXPECT_EQ(value->size(), 200000u);
}

TEST(Json, NumbersAreNumbersHoweverSpelled) {
  const Json values = *parse_json("[1, 1.50, 1e3, 99999999999999999999, \"1\", -3]");
  const bool number[] = {true, true, true, true, false, true};
  const bool integer[] = {true, false, false, true, false, true};
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(is_number(values[i]), number[i]) << i;
    EXPECT_EQ(is_integer(values[i]), integer[i]) << i;
  }
  EXPECT_EQ(number_spelling(values[1]), "1.50");
  EXPECT_EQ(type_name(values[1]), "number");
  EXPECT_EQ(to_json_text(Json(0.5)), "0.5");  // a number that some other code put in
}

TEST(Json, FindsMembers) {
  const Json value = *parse_json(R"({"a": {"b": 2}})");
  EXPECT_EQ(*find_member(*find_member(value, "a"), "b"), 2);
  EXPECT_EQ(find_member(value, "b"), nullptr);
  EXPECT_EQ(find_member(Json::array(), "a"), nullptr);
}

}  // namespace
}  // namespace tercet
