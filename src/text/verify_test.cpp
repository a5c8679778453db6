#include "text/verify.h"

#include <gmock/gmock.h>

#include "text/test_model.h"

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::filesystem::path kCases = kSourceDir / "tests/cases";

CaseReport verify(const std::filesystem::path& model, const std::vector<std::filesystem::path>& files) {
  auto report = verify_text(model, files);
  EXPECT_TRUE(report) << report.error().message;
  return report.value_or(CaseReport());
}

TEST(VerifyText, EveryCasePasses) {
  const CaseReport report =
      verify(kTinyModel, {kCases / "answers.jsonl", kCases / "answers_more.jsonl", kCases / "prompts.jsonl",
                          kCases / "prompts_more.jsonl", kCases / "ids.jsonl"});
  EXPECT_THAT(report.failures, IsEmpty());
  EXPECT_EQ(report.failed, 0);
  EXPECT_GT(report.passed, 200);
}

TEST(VerifyText, EveryCasePassesWithoutSuffix) {
  const TempDir bare;
  bare.copy("tokenizer.json", ":opensource");
  bare.copy("tokenizer_config.json", ":opensource");
  bare.copy("chat_template.jinja", ":opensource");
  std::vector<std::filesystem::path> files;
  for (const char* name : {"answers.jsonl", "answers_more.jsonl", "prompts.jsonl"}) {
    files.push_back(bare.write(name, replaced(read_file(kCases / name).value(), ":opensource", "")));
  }
  const CaseReport report = verify(bare.path(), files);
  EXPECT_THAT(report.failures, IsEmpty());
  EXPECT_GT(report.passed, 80);
}

TEST(VerifyText, NamesWhatFails) {
  const TempDir dir;
  const auto file =
      dir.write("cases.jsonl",
                R"({"name": "r", "pieces": ["x"], "start": "reasoning", "reasoning": "", "content": ""}
{"name": "c", "pieces": ["x"], "reasoning": "", "content": "y\n"}

{"name": "t", "pieces": ["x"], "reasoning": "", "content": "x", "tool_calls": [{"name": "f", "arguments": "{}"}]}
{"name": "g", "pieces": [{"tag": "nonsense"}], "reasoning": "", "content": "x"}
{"name": "p", "prompt": "x", "request": {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": false}}
{"name": "q", "prompt": "x", "request": {}}
{"name": "e", "error": "x", "request": {}}
{"name": "i", "text": "Hi", "ids": [1]}
{"prompt": 5}
{"name": "u"}
{"name":
)");
  const CaseReport report = verify(kTinyModel, {file});
  EXPECT_EQ(report.passed, 0);
  EXPECT_EQ(report.failed, 11);
  const std::string at = file.string();
  EXPECT_THAT(
      report.failures,
      ElementsAre(at + ":1: r: reasoning: expected \"\", found \"x\"",
                  at + ":2: c: content: expected \"y\\n\", found \"x\"",
                  at + ":4: t: tool_calls: expected \"[{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": "
                       "\\\"{}\\\"}]\", found \"[]\"",
                  at + ":5: g: the vocabulary has no tag `nonsense`",
                  HasSubstr(":6: p: prompt: expected \"x\", found \"<｜hy_begin_of_sentence:opensource｜>"),
                  at + ":7: q: the request is refused: messages: is missing",
                  at + ":8: e: error: expected \"x\", found \"messages: is missing\"",
                  HasSubstr(":9: i: ids: expected \"[1]\", found \"["),
                  at + ":10: case: `prompt` is not a string",
                  at + ":11: u: no case: it has none of `pieces`, `prompt`, `error`, `ids`",
                  HasSubstr(":12: case: parse error at line 1")));
}

TEST(VerifyText, NamesWhatCannotBeRead) {
  const std::vector<std::filesystem::path> none = {"/nonexistent/cases.jsonl"};
  EXPECT_EQ(verify_text(kTinyModel, none).error().message,
            "/nonexistent/cases.jsonl: cannot be read: No such file or directory");
  EXPECT_EQ(verify_text("/nonexistent", {}).error().message,
            "/nonexistent/tokenizer.json: cannot be read: No such file or directory");
}

}  // namespace
}  // namespace tercet
