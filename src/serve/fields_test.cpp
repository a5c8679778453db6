#include "serve/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/sampling_fields.h"

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Json object(std::string_view text) { return *parse_body(text); }

std::string error_of(std::string_view text, const std::function<void(Fields&)>& read) {
  const Json json = object(text);
  Fields fields(json);
  read(fields);
  return fields.error() ? fields.error()->message : "";
}

TEST(Fields, ReadsEachType) {
  const Json json = object(R"({"b": true, "x": 0.5, "i": 7.0, "s": "text", "one": "a", "many": ["a", "b"],
                               "ids": [1, 2e0], "o": {}, "null": null})");
  Fields fields(json);
  EXPECT_EQ(fields.boolean("b"), true);
  EXPECT_EQ(fields.number("x"), 0.5);
  EXPECT_EQ(fields.integer("i", 0, 10), 7);
  EXPECT_EQ(fields.string("s"), "text");
  EXPECT_THAT(fields.strings("one"), ElementsAre("a"));
  EXPECT_THAT(fields.strings("many"), ElementsAre("a", "b"));
  EXPECT_THAT(fields.tokens("ids"), ElementsAre(1, 2));
  EXPECT_NE(fields.object("o"), nullptr);
  EXPECT_EQ(fields.number("null"), std::nullopt);
  EXPECT_EQ(fields.string("absent"), std::nullopt);
  EXPECT_FALSE(fields.error());
  EXPECT_TRUE(fields.ignored().empty());
}

TEST(Fields, NamesWhatNobodyRead) {
  const Json json = object(R"({"zebra": 1, "a": 2, "b": 3})");
  Fields fields(json);
  fields.number("a");
  EXPECT_THAT(fields.ignored(), ElementsAre("zebra", "b"));
}

TEST(Fields, SaysWhatWasExpectedAndFound) {
  EXPECT_EQ(error_of(R"({"b": 1})", [](Fields& f) { f.boolean("b"); }), "b: expected true or false, found 1");
  EXPECT_EQ(error_of(R"({"x": "1"})", [](Fields& f) { f.number("x"); }), "x: expected a number, found \"1\"");
  EXPECT_EQ(error_of(R"({"i": 1.5})", [](Fields& f) { f.integer("i", 0, 9); }),
            "i: expected a whole number from 0 to 9, found 1.5");
  EXPECT_EQ(error_of(R"({"i": 18446744073709551615})", [](Fields& f) { f.integer("i", 0, 9); }),
            "i: expected a whole number from 0 to 9, found 18446744073709551615");
  EXPECT_EQ(error_of(R"({"i": 1e300})", [](Fields& f) { f.integer("i", 0, 9); }),
            "i: expected a whole number from 0 to 9, found 1e300");
  EXPECT_EQ(error_of(R"({"s": []})", [](Fields& f) { f.string("s"); }), "s: expected a string, found []");
  EXPECT_EQ(error_of(R"({"s": ["a", 1]})", [](Fields& f) { f.strings("s"); }),
            "s: expected a string or a list of strings, found [\"a\", 1]");
  EXPECT_EQ(error_of(R"({"t": [-1]})", [](Fields& f) { f.tokens("t"); }),
            "t: expected a list of token ids, found [-1]");
  EXPECT_EQ(error_of(R"({"o": [1]})", [](Fields& f) { f.object("o"); }), "o: expected an object, found [1]");
  const std::string first = error_of(R"({"a": 1, "b": 2})", [](Fields& f) {
    f.string("a");
    f.string("b");
  });
  EXPECT_EQ(first, "a: expected a string, found 1");
}

TEST(Fields, BodiesAreObjects) {
  EXPECT_THAT(parse_body("{").error().message, HasSubstr("the body is not valid JSON"));
  EXPECT_EQ(parse_body("[1]").error().message, "the body: expected a JSON object, found array");
}

SamplingParams sampling(std::string_view text) {
  const Json json = object(text);
  Fields fields(json);
  SamplingParams params;
  params.temperature = 0.9F;
  read_sampling(fields, params);
  EXPECT_FALSE(fields.error()) << fields.error()->message;
  return params;
}

TEST(SamplingFields, ReadsEveryDialect) {
  const SamplingParams p = sampling(R"({"top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.25,
      "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"7": -100, "9": 1.5}, "seed": 18446744073709551615,
      "stop": "END", "stop_token_ids": [4, 5], "ignore_eos": true, "min_tokens": 2, "max_tokens": 8})");
  EXPECT_EQ(p.temperature, 0.9F);
  EXPECT_EQ(p.top_p, 0.5F);
  EXPECT_EQ(p.top_k, 3);
  EXPECT_EQ(p.min_p, 0.1F);
  EXPECT_EQ(p.repetition_penalty, 1.25F);
  EXPECT_EQ(p.presence_penalty, 0.5F);
  EXPECT_EQ(p.frequency_penalty, -0.5F);
  ASSERT_EQ(p.logit_bias.size(), 2U);
  EXPECT_EQ(p.logit_bias[1].token, 9);
  EXPECT_EQ(p.logit_bias[1].bias, 1.5F);
  EXPECT_EQ(p.seed, 18446744073709551615U);
  EXPECT_THAT(p.stop, ElementsAre("END"));
  EXPECT_THAT(p.stop_tokens, ElementsAre(4, 5));
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(p.min_tokens, 2);
  EXPECT_EQ(p.max_tokens, 8);
  EXPECT_EQ(sampling(R"({"max_completion_tokens": 5, "max_tokens": 9})").max_tokens, 5);
  EXPECT_EQ(sampling(R"({"n_predict": -1})").max_tokens, std::nullopt);
  EXPECT_EQ(sampling(R"({"seed": -1})").seed, std::nullopt);
  EXPECT_EQ(sampling(R"({"seed": -2})").seed, ~uint64_t{1});
  EXPECT_EQ(sampling(R"({"repeat_penalty": 1.5})").repetition_penalty, 1.5F);
}

TEST(SamplingFields, ChoicesCountOnFromTheSeed) {
  SamplingParams params;
  EXPECT_EQ(params_of_choice(params, 2).seed, std::nullopt);
  params.seed = 5;
  EXPECT_EQ(params_of_choice(params, 0).seed, 5U);
  EXPECT_EQ(params_of_choice(params, 2).seed, 7U);
}

}  // namespace
}  // namespace tercet
