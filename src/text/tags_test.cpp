#include "text/tags.h"

#include <gmock/gmock.h>

#include "text/test_model.h"

namespace tercet {
namespace {

Result<Tags> tags_of(const std::filesystem::path& model) {
  const auto tokenizer = Tokenizer::load(model);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return Tags::read(*tokenizer);
}

TEST(Tags, AreReadOffTheVocabulary) {
  const Tags tags = tags_of(kTinyModel).value();
  EXPECT_EQ(tags.suffix(), ":opensource");
  EXPECT_EQ(tags.id(Tag::begin_of_sentence), 4064);
  EXPECT_EQ(tags.id(Tag::user), 4066);
  EXPECT_EQ(tags.id(Tag::think), 4070);
  EXPECT_EQ(tags.id(Tag::end_arg_value), 4080);
  EXPECT_EQ(tags.id(Tag::end_of_tool_call), -1);
  EXPECT_EQ(tags.tag(4074), Tag::tool_call);
  EXPECT_EQ(tags.tag(4065), std::nullopt);  // padding
  EXPECT_EQ(tags.tag(-1), std::nullopt);
}

TEST(Tags, BareNames) {
  EXPECT_EQ(Tags::bare_name(Tag::end_tool_call), "/tool_call");
  EXPECT_EQ(Tags::by_bare_name("arg_key"), Tag::arg_key);
  EXPECT_EQ(Tags::by_bare_name("｜hy_eos｜"), Tag::eos);
  EXPECT_EQ(Tags::by_bare_name("arg"), std::nullopt);
}

TEST(Tags, AnySuffix) {
  for (const char* suffix : {"", ":v2", ":a:b"}) {
    const TempDir dir;
    dir.copy("tokenizer.json", ":opensource", suffix);
    const auto tags = tags_of(dir.path());
    ASSERT_TRUE(tags) << tags.error().message;
    EXPECT_EQ(tags->suffix(), suffix);
    EXPECT_EQ(tags->id(Tag::end_think), 4071);
  }
}

TEST(Tags, TheSuffixOfMostCounts) {
  const TempDir dir;  // a placeholder becomes a stray tag without suffix, another the second closer
  const std::string json = replaced(read_file(kTinyModel / "tokenizer.json").value(),
                                    "<｜hy_place_holder_11:opensource｜>", "<think>");
  dir.write("tokenizer.json",
            replaced(json, "<｜hy_place_holder_10:opensource｜>", "<end_of_tool_call:opensource>"));
  const Tags tags = tags_of(dir.path()).value();
  EXPECT_EQ(tags.suffix(), ":opensource");
  EXPECT_EQ(tags.id(Tag::think), 4070);
  EXPECT_EQ(tags.id(Tag::end_of_tool_call), 4086);
}

TEST(Tags, NamesEachMissingOne) {
  const TempDir dir;
  const std::string json =
      replaced(read_file(kTinyModel / "tokenizer.json").value(), "<tool_sep:", "<tool_zep:");
  dir.write("tokenizer.json", replaced(json, "｜hy_eos:", "｜hy_end:"));
  EXPECT_EQ(tags_of(dir.path()).error().message,
            (dir.path() / "tokenizer.json").string() +
                ": the added tokens lack <tool_sep:opensource>, <｜hy_eos:opensource｜>");
}

TEST(Tags, NamesAllWhereThereIsNone) {
  const TempDir dir;
  dir.copy("tokenizer.json", "opensource", "x>y");
  const auto tags = tags_of(dir.path());
  EXPECT_TRUE(tags) << "a suffix may be anything after the colon";
  dir.copy("tokenizer.json", ":opensource", "-x");
  EXPECT_THAT(tags_of(dir.path()).error().message,
              testing::HasSubstr("lack <think>, </think>, <tool_calls>, </tool_calls>, <tool_call>"));
}

TEST(Tags, StartOfTheAnswer) {
  const Tags tags = tags_of(kTinyModel).value();
  const int32_t user = tags.id(Tag::user), assistant = tags.id(Tag::assistant), think = tags.id(Tag::think),
                end_think = tags.id(Tag::end_think);
  using Ids = std::vector<int32_t>;
  EXPECT_TRUE(ends_in_thought(Ids{user, 5, assistant, think}, tags));
  EXPECT_TRUE(ends_in_thought(Ids{user, 5, assistant, think, 7, 8}, tags));
  EXPECT_FALSE(ends_in_thought(Ids{user, 5, assistant, think, end_think}, tags));
  EXPECT_FALSE(ends_in_thought(Ids{assistant, think, user, 5, assistant}, tags));
  EXPECT_FALSE(ends_in_thought(Ids{1, 2, 3}, tags));
  EXPECT_FALSE(ends_in_thought(Ids{}, tags));
}

}  // namespace
}  // namespace tercet
