#include "sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kVocabulary = 40;  // a mask has two words, eight bits in the second
const std::vector<int32_t> kEos = {3, 35};
const std::vector<int32_t> kPrompt = {5, 6, 5};

Sampler sampler(const SamplingParams& params) { return {params, 99, kEos, kVocabulary, kPrompt}; }

DrawParams next(const Sampler& s, uint32_t position = 0, const std::vector<uint32_t>& allowed = {}) {
  auto params = s.next(position, allowed);
  EXPECT_TRUE(params) << params.error().message;
  return params ? std::move(*params) : DrawParams{};
}

testing::Matcher<TokenCount> count(int32_t token, int32_t in_answer) {
  return testing::AllOf(testing::Field(&TokenCount::token, token),
                        testing::Field(&TokenCount::in_context, true),
                        testing::Field(&TokenCount::in_answer, in_answer));
}

TEST(Sampler, PassesParametersOn) {
  SamplingParams params;
  params.temperature = 0.5F;
  params.top_k = 7;
  params.top_p = 0.9F;
  params.min_p = 0.1F;
  params.repetition_penalty = 1.1F;
  params.presence_penalty = 0.2F;
  params.frequency_penalty = 0.3F;
  params.logit_bias = {{4, 2.0F}};
  const DrawParams draw = next(sampler(params), 17);
  EXPECT_EQ(draw.temperature, 0.5F);
  EXPECT_EQ(draw.top_k, 7);
  EXPECT_EQ(draw.top_p, 0.9F);
  EXPECT_EQ(draw.min_p, 0.1F);
  EXPECT_EQ(draw.repetition_penalty, 1.1F);
  EXPECT_EQ(draw.presence_penalty, 0.2F);
  EXPECT_EQ(draw.frequency_penalty, 0.3F);
  ASSERT_EQ(draw.bias.size(), 1U);
  EXPECT_EQ(draw.bias[0].token, 4);
  EXPECT_EQ(draw.bias[0].bias, 2.0F);
  EXPECT_EQ(draw.seed, 99U);
  EXPECT_EQ(draw.position, 17U);
  EXPECT_THAT(draw.mask, IsEmpty());
}

TEST(Sampler, TopKOfMinusOneIsOff) {
  SamplingParams params;
  params.top_k = -1;
  EXPECT_EQ(next(sampler(params)).top_k, 0);
}

TEST(Sampler, CountsPromptAndAnswerForRepetition) {
  SamplingParams params;
  params.repetition_penalty = 1.5F;
  Sampler s = sampler(params);
  EXPECT_THAT(next(s).counts, ElementsAre(count(5, 0), count(6, 0)));
  s.accept(6);
  s.accept(8);
  s.accept(6);
  EXPECT_THAT(next(s).counts, ElementsAre(count(5, 0), count(6, 2), count(8, 1)));
  EXPECT_EQ(s.drawn(), 3);
}

TEST(Sampler, CountsTheAnswerAloneForPresenceAndFrequency) {
  for (const bool presence : {false, true}) {
    SamplingParams params;
    (presence ? params.presence_penalty : params.frequency_penalty) = 0.5F;
    Sampler s = sampler(params);
    EXPECT_THAT(next(s).counts, IsEmpty());
    s.accept(6);
    s.accept(6);
    EXPECT_THAT(next(s).counts, ElementsAre(count(6, 2)));
  }
}

TEST(Sampler, CountsNothingWithoutPenalties) {
  Sampler s = sampler({});
  s.accept(6);
  EXPECT_THAT(next(s).counts, IsEmpty());
  EXPECT_EQ(s.drawn(), 1);
}

TEST(Sampler, StopTokens) {
  SamplingParams params;
  params.stop_tokens = {10};
  EXPECT_TRUE(sampler(params).stops(3));
  EXPECT_TRUE(sampler(params).stops(35));
  EXPECT_TRUE(sampler(params).stops(10));
  EXPECT_FALSE(sampler(params).stops(11));
  params.ignore_eos = true;
  EXPECT_FALSE(sampler(params).stops(3));
  EXPECT_TRUE(sampler(params).stops(10));
}

TEST(Sampler, MasksEndsUntilMinTokens) {
  SamplingParams params;
  params.min_tokens = 2;
  params.stop_tokens = {0};
  Sampler s = sampler(params);
  EXPECT_THAT(next(s).mask, ElementsAre(0xfffffff6U, 0xf7U));  // without 0, 3 and 35
  s.accept(1);
  EXPECT_THAT(next(s).mask, ElementsAre(0xfffffff6U, 0xf7U));
  s.accept(1);
  EXPECT_THAT(next(s).mask, IsEmpty());

  params.ignore_eos = true;
  EXPECT_THAT(next(sampler(params)).mask, ElementsAre(0xfffffffeU, 0xffU));
  params.stop_tokens.clear();
  EXPECT_THAT(next(sampler(params)).mask, IsEmpty());
}

TEST(Sampler, ConstraintAndMinTokensCombine) {
  SamplingParams params;
  params.min_tokens = 1;
  Sampler s = sampler(params);
  EXPECT_THAT(next(s, 0, {0x18U, 0x18U}).mask, ElementsAre(0x10U, 0x10U));
  EXPECT_THAT(next(s, 0, {0x8U, 0U}).mask, ElementsAre(0x8U, 0U));  // it allows the end alone
  s.accept(4);
  EXPECT_THAT(next(s, 0, {0x18U, 0x18U}).mask, ElementsAre(0x18U, 0x18U));
}

TEST(Sampler, RefusesMasksThatAllowNothingOrDoNotFit) {
  const Sampler s = sampler({});
  EXPECT_EQ(s.next(0, {0U, 0U}).error().message, "the constraint allows no token");
  EXPECT_EQ(s.next(0, {0U, 0xffffff00U}).error().message, "the constraint allows no token");
  EXPECT_EQ(s.next(0, {1U}).error().message, "the constraint's mask has 1 words, the vocabulary 2");
}

TEST(Sampler, FullWordsInVocabulariesOfMultiplesOf32) {
  SamplingParams params;
  params.min_tokens = 1;
  const Sampler s(params, 1, std::vector<int32_t>{0}, 64, kPrompt);
  EXPECT_THAT(next(s).mask, ElementsAre(0xfffffffeU, 0xffffffffU));
}

}  // namespace
}  // namespace tercet
