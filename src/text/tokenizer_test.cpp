#include "text/tokenizer.h"

#include <gmock/gmock.h>

#include <random>

#include "text/test_model.h"

namespace tercet {
namespace {

using Ids = std::vector<int32_t>;

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(kTinyModel).value();
  return tokenizer;
}

TEST(Tokenizer, KnowsItsVocabulary) {
  EXPECT_EQ(tiny().vocabulary_size(), 4096);
  EXPECT_EQ(tiny().token_bytes(4063), " pat");
  EXPECT_EQ(tiny().token_bytes(4066), "<｜hy_User:opensource｜>");
  EXPECT_EQ(tiny().token_bytes(4096), "");
  EXPECT_EQ(tiny().token_bytes(-1), "");
  EXPECT_EQ(tiny().control("<think:opensource>"), 4070);
  EXPECT_EQ(tiny().control(" pat"), std::nullopt);
  EXPECT_EQ(tiny().controls().size(), 32u);
  EXPECT_TRUE(tiny().is_control(4070) && !tiny().is_special(4070));
  EXPECT_TRUE(tiny().is_control(4068) && tiny().is_special(4068));
  EXPECT_FALSE(tiny().is_control(4063) || tiny().is_control(-1) || tiny().is_control(4096));
  EXPECT_EQ(tiny().control_marks(), "<｜:>/");
}

TEST(Tokenizer, EveryByteHasItsToken) {
  std::vector<bool> seen(256);
  for (int32_t id = 0; id < tiny().vocabulary_size(); ++id) {
    const std::string_view bytes = tiny().token_bytes(id);
    EXPECT_FALSE(bytes.empty()) << id;
    if (bytes.size() == 1) seen[static_cast<unsigned char>(bytes[0])] = true;
  }
  EXPECT_THAT(seen, testing::Each(true));
}

TEST(Tokenizer, TextNeverBecomesAControlToken) {
  for (const int32_t id : tiny().controls()) {
    const std::string text = fmt::format("x{}y", tiny().token_bytes(id));
    const Ids ids = tiny().encode_text(text).value();
    for (const int32_t piece : ids) EXPECT_FALSE(tiny().is_control(piece)) << text;
    EXPECT_EQ(tiny().decode(ids, false), text);
  }
}

TEST(Tokenizer, PromptsHaveControlTokensOutsideOfForeignSpans) {
  const std::string text = "<think:opensource>a</think:opensource>b<think:opensource>";
  const Ids a = tiny().encode_text("a").value(), b = tiny().encode_text("b").value();
  ASSERT_EQ(a.size() * b.size(), 1u);
  EXPECT_EQ(tiny().encode_prompt(text, {}).value(), (Ids{4070, a[0], 4071, b[0], 4070}));
  // One foreign byte is enough, wherever it lies in the token.
  for (size_t at = 19; at < 38; ++at) {
    const std::vector<TextSpan> foreign = {{at, at + 1}};
    const Ids ids = tiny().encode_prompt(text, foreign).value();
    EXPECT_THAT(ids, testing::Not(testing::Contains(4071))) << at;
    EXPECT_EQ(ids.front(), 4070);
    EXPECT_EQ(ids.back(), 4070);
    EXPECT_EQ(tiny().decode(ids, false), text);
  }
  const std::vector<TextSpan> beside = {{0, 1}, {18, 19}, {38, 39}};
  const Ids ids = tiny().encode_prompt(text, beside).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 4070), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 4071), 1);
  EXPECT_EQ(tiny().encode_prompt(text, std::vector<TextSpan>{{0, text.size()}}).value(),
            tiny().encode_text(text).value());
}

TEST(Tokenizer, TheLongestControlTokenWins) {
  const TempDir dir;  // one token begins another, and a third is a suffix of it
  std::string json =
      replaced(read_file(kTinyModel / "tokenizer.json").value(), "<｜hy_place_holder_1:opensource｜>", "<x>");
  json = replaced(json, "<｜hy_place_holder_2:opensource｜>", "<x>>");
  json = replaced(json, "<｜hy_place_holder_3:opensource｜>", ">>");
  json = replaced(json, "<｜hy_place_holder_4:opensource｜>", "word");
  dir.write("tokenizer.json", json);
  const Tokenizer tokenizer = Tokenizer::load(dir.path()).value();
  EXPECT_EQ(tokenizer.encode_prompt("<x>>>><x><x>>", {}).value(), (Ids{4094, 4093, 4095, 4094}));
  EXPECT_EQ(tokenizer.encode_prompt("<x>>", std::vector<TextSpan>{{3, 4}}).value()[0], 4095);
  EXPECT_EQ(tokenizer.control("word"), std::nullopt);
  EXPECT_EQ(tokenizer.encode_prompt("word", {}).value(), tokenizer.encode_text("word").value());
}

TEST(Tokenizer, BytesThatAreNoUtf8) {
  EXPECT_EQ(tiny().decode(tiny().encode_text("a\xff\xc3z").value(), false), "a\ufffd\ufffdz");
  EXPECT_EQ(tiny().decode(tiny().encode_prompt("\xe2\x82<think:opensource>\xac", {}).value(), false),
            "\ufffd<think:opensource>\ufffd");
}

TEST(Tokenizer, DecodeCanLeaveOutSpecialTokens) {
  const Ids ids = {4066, 4070, 4063, 4068};
  EXPECT_EQ(tiny().decode(ids, false),
            "<｜hy_User:opensource｜><think:opensource> pat<｜hy_eos:opensource｜>");
  EXPECT_EQ(tiny().decode(ids, true), "<think:opensource> pat");
}

TEST(Tokenizer, NamesWhatIsWrongWithAFile) {
  const auto message = [](std::string_view json) {
    const TempDir dir;
    dir.write("tokenizer.json", json);
    const auto tokenizer = Tokenizer::load(dir.path());
    return tokenizer ? "loads" : replaced(tokenizer.error().message, dir.path().string(), "DIR");
  };
  const std::string good = read_file(kTinyModel / "tokenizer.json").value();
  EXPECT_EQ(message(good), "loads");
  EXPECT_EQ(Tokenizer::load("/nonexistent").error().message,
            "/nonexistent/tokenizer.json: cannot be read: No such file or directory");
  EXPECT_THAT(message(""), testing::HasSubstr("DIR/tokenizer.json: EOF while parsing"));
  EXPECT_THAT(message(good.substr(0, good.size() / 2)), testing::HasSubstr("EOF while parsing"));
  EXPECT_THAT(message("{}"), testing::HasSubstr("missing field `added_tokens`"));
  EXPECT_THAT(message(replaced(good, "\"BPE\"", "\"Unigram\"")), testing::HasSubstr("expected BPE"));
  EXPECT_THAT(
      message(
          R"({"added_tokens": [], "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"),
      testing::HasSubstr("expected a decoder of type ByteLevel"));
  EXPECT_THAT(message(R"({"added_tokens": [], "decoder": {"type": "ByteLevel", "add_prefix_space": true,
      "trim_offsets": true, "use_regex": true}, "model": {"type": "BPE", "vocab": {}, "merges": []}})"),
              testing::HasSubstr("the vocabulary is empty"));
  EXPECT_EQ(message(replaced(good, "\"rstrip\": false", "\"rstrip\": true")),
            "DIR/tokenizer.json: added token <｜hy_begin_of_sentence:opensource｜>: single_word, lstrip and "
            "rstrip are "
            "not supported");
  EXPECT_THAT(message(replaced(good, "4095", "4000000000")),
              testing::HasSubstr("token id 4000000000 is beyond 16777216"));
}

TEST(Detokenizer, PiecesAreWholeCharactersAndAddUp) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> any(0, tiny().vocabulary_size() - 1);
  for (int round = 0; round < 200; ++round) {
    Ids ids(20);
    for (int32_t& id : ids) id = round % 2 == 0 ? any(random) : any(random) % 256;  // the first ids are bytes
    const std::string whole = tiny().decode(ids, false);
    Detokenizer detokenizer(tiny(), false);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string piece = detokenizer.add(id);
      Utf8Decoder check;
      std::string valid;
      check.add(piece, valid);
      check.finish(valid);
      EXPECT_EQ(valid, piece);
      joined += piece;
    }
    EXPECT_EQ(joined + detokenizer.finish(), whole);
  }
}

TEST(Detokenizer, WaitsOnlyForTheCharacter) {
  const Ids euro = tiny().encode_text("€").value();  // U+20AC, three bytes
  ASSERT_EQ(euro.size(), 3u);
  Detokenizer detokenizer(tiny(), true);
  EXPECT_EQ(detokenizer.add(euro[0]), "");
  EXPECT_EQ(detokenizer.add(euro[1]), "");
  EXPECT_EQ(detokenizer.add(euro[2]), "€");
  EXPECT_EQ(detokenizer.add(euro[0]), "");
  EXPECT_EQ(detokenizer.add(4063), "\ufffd pat");  // it can't become a character any more
  EXPECT_EQ(detokenizer.add(4068), "");            // special
  EXPECT_EQ(detokenizer.add(euro[0]), "");
  EXPECT_EQ(detokenizer.finish(), "\ufffd");
  EXPECT_EQ(detokenizer.finish(), "");
}

}  // namespace
}  // namespace tercet
