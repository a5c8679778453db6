#include "text/answer_parser.h"

#include <gmock/gmock.h>

#include "text/test_model.h"

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = AnswerEvent::Kind;
using Events = std::vector<AnswerEvent>;

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(kTinyModel).value();
  return tokenizer;
}
const Tags& tags() {
  static const Tags tags = Tags::read(tiny()).value();
  return tags;
}

const Json kTools =
    *parse_json(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "properties": {"s": {"type": "string"}, "i": {"type": "integer"}}}}}])");

/// Feeds one tag or one text at a time.
class Feeder {
 public:
  explicit Feeder(bool in_thought = false) : parser_(tiny(), tags(), kTools, in_thought) {}
  Events operator()(Tag tag, AnswerEnd end = AnswerEnd::none) {
    return parser_.add(std::vector{tags().id(tag)}, end);
  }
  Events operator()(std::string_view text, AnswerEnd end = AnswerEnd::none) {
    return parser_.add(tiny().encode_text(text).value(), end);
  }
  Events end(AnswerEnd end) { return parser_.add({}, end); }

 private:
  AnswerParser parser_;
};

// Whole cases are in tests/cases/answers*.jsonl; here is what comes when.

TEST(AnswerParser, TextStreams) {
  Feeder feed(true);
  EXPECT_THAT(feed("I think"), ElementsAre(AnswerEvent{Kind::reasoning, -1, "I think"}));
  EXPECT_THAT(feed(" so."), ElementsAre(AnswerEvent{Kind::reasoning, -1, " so."}));
  EXPECT_THAT(feed(Tag::end_think), IsEmpty());
  EXPECT_THAT(feed("\n"), IsEmpty());  // layout, if a call follows
  EXPECT_THAT(feed("A"), ElementsAre(AnswerEvent{Kind::content, -1, "\nA"}));
  EXPECT_THAT(feed("\n"), ElementsAre(AnswerEvent{Kind::content, -1, "\n"}));
  EXPECT_THAT(feed("B", AnswerEnd::stop), ElementsAre(AnswerEvent{Kind::content, -1, "B"}));
}

TEST(AnswerParser, ArgumentsStream) {
  Feeder feed;
  for (const Tag tag : {Tag::tool_calls, Tag::tool_call}) EXPECT_THAT(feed(tag), IsEmpty());
  EXPECT_THAT(feed("f"), IsEmpty());
  EXPECT_THAT(feed(Tag::tool_sep), IsEmpty());
  EXPECT_THAT(feed(Tag::arg_key), ElementsAre(AnswerEvent{Kind::call_begin, 0, "f"}));
  EXPECT_THAT(feed("s"), IsEmpty());
  EXPECT_THAT(feed(Tag::end_arg_key), IsEmpty());
  EXPECT_THAT(feed(Tag::arg_value), ElementsAre(AnswerEvent{Kind::arguments, 0, "{\"s\": \""}));
  EXPECT_THAT(feed("4\""), ElementsAre(AnswerEvent{Kind::arguments, 0, "4\\\""}));
  EXPECT_THAT(feed(Tag::end_arg_value), ElementsAre(AnswerEvent{Kind::arguments, 0, "\""}));
  feed(Tag::arg_key);
  feed("i");
  feed(Tag::end_arg_key);
  EXPECT_THAT(feed(Tag::arg_value), ElementsAre(AnswerEvent{Kind::arguments, 0, ", \"i\": "}));
  EXPECT_THAT(feed("1"), IsEmpty());
  EXPECT_THAT(feed("2"), IsEmpty());
  EXPECT_THAT(feed(Tag::end_arg_value), ElementsAre(AnswerEvent{Kind::arguments, 0, "12"}));
  EXPECT_THAT(feed(Tag::end_tool_call),
              ElementsAre(AnswerEvent{Kind::arguments, 0, "}"}, AnswerEvent{Kind::call_end, 0, ""}));
  feed(Tag::tool_call);
  feed("g");
  EXPECT_THAT(feed(Tag::end_tool_call),
              ElementsAre(AnswerEvent{Kind::call_begin, 1, "g"}, AnswerEvent{Kind::arguments, 1, "{}"},
                          AnswerEvent{Kind::call_end, 1, ""}));
  EXPECT_THAT(feed(Tag::end_tool_calls, AnswerEnd::stop), IsEmpty());
}

TEST(AnswerParser, ACutCallNeverEnds) {
  Feeder feed;
  for (const Tag tag : {Tag::tool_calls, Tag::tool_call}) feed(tag);
  feed("f");
  feed(Tag::tool_sep);
  feed(Tag::arg_key);
  feed("s");
  feed(Tag::end_arg_key);
  feed(Tag::arg_value);
  EXPECT_THAT(feed("Par", AnswerEnd::length), ElementsAre(AnswerEvent{Kind::arguments, 0, "Par"}));
}

TEST(AnswerParser, HalfACharacterWaitsAndEndsAsReplacement) {
  const std::vector<int32_t> euro = tiny().encode_text("€").value();
  ASSERT_EQ(euro.size(), 3u);
  AnswerParser parser(tiny(), tags(), Json(), true);
  EXPECT_THAT(parser.add(std::span(euro).first(2), AnswerEnd::none), IsEmpty());
  EXPECT_THAT(parser.add(std::span(euro).last(1), AnswerEnd::none),
              ElementsAre(AnswerEvent{Kind::reasoning, -1, "€"}));
  EXPECT_THAT(parser.add(std::span(euro).first(1), AnswerEnd::none), IsEmpty());
  const std::vector<int32_t> closer = {tags().id(Tag::end_think)};
  EXPECT_THAT(parser.add(closer, AnswerEnd::none), ElementsAre(AnswerEvent{Kind::reasoning, -1, "\ufffd"}));
  EXPECT_THAT(parser.add(std::span(euro).first(1), AnswerEnd::length),
              ElementsAre(AnswerEvent{Kind::content, -1, "\ufffd"}));
}

TEST(AnswerParser, TheOtherCloser) {
  const TempDir dir;
  dir.copy("tokenizer.json", "<｜hy_place_holder_1:opensource｜>", "<end_of_tool_call:opensource>");
  const Tokenizer tokenizer = Tokenizer::load(dir.path()).value();
  const Tags with_closer = Tags::read(tokenizer).value();
  std::vector<int32_t> tokens = {with_closer.id(Tag::tool_calls), with_closer.id(Tag::tool_call)};
  const auto add = [&](std::string_view text) {
    const auto ids = tokenizer.encode_text(text).value();
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  };
  add("f");
  tokens.push_back(with_closer.id(Tag::tool_sep));
  add("{\"s\": \"x\"}");
  tokens.push_back(with_closer.id(Tag::end_of_tool_call));
  tokens.push_back(with_closer.id(Tag::end_tool_call));  // both
  tokens.push_back(with_closer.id(Tag::tool_call));
  add("f");
  tokens.push_back(with_closer.id(Tag::end_of_tool_call));
  tokens.push_back(with_closer.id(Tag::end_tool_calls));
  AnswerParser parser(tokenizer, with_closer, kTools, false);
  Answer answer;
  answer.add(parser.add(tokens, AnswerEnd::stop));
  EXPECT_THAT(answer.calls, ElementsAre(Answer::Call{"f", "{\"s\": \"x\"}"}, Answer::Call{"f", "{}"}));
  EXPECT_EQ(answer.content, "");
}

TEST(AnswerParser, IdsBeyondTheVocabularySayNothing) {
  AnswerParser parser(tiny(), tags(), Json(), false);
  EXPECT_THAT(parser.add(std::vector<int32_t>{-1, 4096, 1 << 30}, AnswerEnd::stop), IsEmpty());
}

TEST(AnswerParserDeathTest, NothingMayFollowTheEnd) {
  AnswerParser parser(tiny(), tags(), Json(), false);
  parser.add({}, AnswerEnd::stop);
  EXPECT_DEATH(parser.add({}, AnswerEnd::none), "check failed");
}

}  // namespace
}  // namespace tercet
