#include "sampling/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

GenerationConfig parsed(std::string_view text) {
  auto result = parse_generation_config(text, "here", 100);
  EXPECT_TRUE(result) << result.error().message;
  return result ? std::move(*result) : GenerationConfig{};
}

std::string error_of(std::string_view text) {
  const auto result = parse_generation_config(text, "here", 100);
  return result ? "" : result.error().message;
}

TEST(GenerationConfig, TakesWhatTheFileSays) {
  const GenerationConfig config = parsed(R"({"temperature": 0.9, "top_p": 0.8, "top_k": 20, "min_p": 0.05,
      "repetition_penalty": 1.05, "do_sample": true, "eos_token_id": [7, 9], "bos_token_id": 1,
      "transformers_version": "5"})");
  EXPECT_EQ(config.defaults.temperature, 0.9F);
  EXPECT_EQ(config.defaults.top_p, 0.8F);
  EXPECT_EQ(config.defaults.top_k, 20);
  EXPECT_EQ(config.defaults.min_p, 0.05F);
  EXPECT_EQ(config.defaults.repetition_penalty, 1.05F);
  EXPECT_THAT(config.eos_tokens, ElementsAre(7, 9));
}

TEST(GenerationConfig, AbsentAndNullAreNeutral) {
  for (const char* text : {"{}", R"({"temperature": null, "top_k": null, "eos_token_id": null,
                                     "do_sample": null})"}) {
    const GenerationConfig config = parsed(text);
    EXPECT_EQ(config.defaults.temperature, 1.0F);
    EXPECT_EQ(config.defaults.top_p, 1.0F);
    EXPECT_EQ(config.defaults.top_k, 0);
    EXPECT_EQ(config.defaults.repetition_penalty, 1.0F);
    EXPECT_THAT(config.eos_tokens, IsEmpty());
  }
}

TEST(GenerationConfig, WithoutSamplingTheTemperatureIsZero) {
  EXPECT_EQ(parsed(R"({"do_sample": false, "temperature": 0.7})").defaults.temperature, 0.0F);
}

TEST(GenerationConfig, TopKOfMinusOneIsOff) { EXPECT_EQ(parsed(R"({"top_k": -1})").defaults.top_k, -1); }

TEST(GenerationConfig, EndTokenMayBeANumber) {
  EXPECT_THAT(parsed(R"({"eos_token_id": 99})").eos_tokens, ElementsAre(99));
}

TEST(GenerationConfig, ReadsTheTinyCheckpoints) {
  std::ifstream file(TERCET_SOURCE_DIR "/models/hy3-tiny/generation_config.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto config = parse_generation_config(text.str(), "hy3-tiny", 4096);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->defaults.temperature, 0.9F);
  EXPECT_EQ(config->defaults.top_p, 1.0F);
  EXPECT_THAT(config->eos_tokens, ElementsAre(4068));
}

TEST(GenerationConfig, NamesWhatIsWrong) {
  EXPECT_EQ(error_of("{"), "here: expected a JSON object, found broken JSON");
  EXPECT_EQ(error_of("[]"), "here: expected a JSON object, found array");
  EXPECT_EQ(error_of(R"({"temperature": "hot"})"), R"(here: temperature must be a number, not "hot")");
  EXPECT_EQ(error_of(R"({"top_k": 2.5})"), "here: top_k must be a whole number, not 2.5");
  EXPECT_EQ(error_of(R"({"top_k": 18446744073709551615})"),
            "here: top_k must fit 32 bits, but is 18446744073709551615");
  EXPECT_EQ(error_of(R"({"do_sample": 1})"), "here: do_sample must be true or false, not 1");
  EXPECT_EQ(error_of(R"({"eos_token_id": [7, 100]})"),
            "here: eos_token_id 100 is not in the vocabulary of 100");
  EXPECT_EQ(error_of(R"({"eos_token_id": -1})"), "here: eos_token_id -1 is not in the vocabulary of 100");
  EXPECT_EQ(error_of(R"({"eos_token_id": "x"})"), R"(here: eos_token_id must be a whole number, not "x")");
  EXPECT_EQ(error_of(R"({"top_p": 1.5})"), "here: top_p must be above 0 and at most 1, not 1.5");
}

}  // namespace
}  // namespace tercet
