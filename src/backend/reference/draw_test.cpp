#include "backend/reference/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "ops/exact_math.h"

// Parameters that a test does not name are neutral.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace tercet::reference {
namespace {

using testing::ElementsAre;

constexpr uint64_t kOne = uint64_t{1} << 40;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t count, uint64_t seed, float scale) {
  std::vector<float> logits;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t word = philox4x32(seed, {i, 7, 7, 7})[0];
    logits.push_back((static_cast<float>(word >> 8) * 0x1p-23F - 1.0F) * scale);
  }
  return logits;
}

/// Tokens that come out in `draws` draws at successive positions, as counts.
std::vector<int> histogram(std::span<const float> logits, DrawParams params, uint32_t draws) {
  std::vector<int> counts(logits.size());
  for (params.position = 0; params.position < draws; ++params.position) {
    ++counts[static_cast<size_t>(draw(logits, params))];
  }
  return counts;
}

/// The tokens that ever come out in 400 draws.
std::vector<int> drawable(std::span<const float> logits, const DrawParams& params) {
  const std::vector<int> counts = histogram(logits, params, 400);
  std::vector<int> tokens;
  for (size_t t = 0; t < counts.size(); ++t) {
    if (counts[t] > 0) tokens.push_back(static_cast<int>(t));
  }
  return tokens;
}

std::vector<double> softmax(std::span<const float> logits, double temperature) {
  std::vector<double> p;
  double sum = 0.0;
  for (const float l : logits) p.push_back(std::exp(static_cast<double>(l) / temperature));
  for (const double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}

TEST(Mass, HandWorkedValues) {
  EXPECT_EQ(mass(3.5F, 3.5F), kOne);
  EXPECT_EQ(mass(-1e30F, 1e30F), 0U);
  EXPECT_EQ(mass(-3e38F, 3e38F), 0U);  // the difference overflows
  // A difference whose product with log2 e rounds to −1: half the mass, exactly.
  float d = -0.6931F;
  while (d * kLog2E > -1.0F) d = std::nextafterf(d, -kInfinity);
  ASSERT_EQ(d * kLog2E, -1.0F);
  EXPECT_EQ(mass(d, 0.0F), kOne / 2);
}

TEST(Mass, RoundsToWholeNumbersTiesToEven) {
  // 2^-40 is one unit; 2^-41 is half of one and goes to the even 0; a little more goes to 1.
  float d = -28.41F;
  while (d * kLog2E > -41.0F) d = std::nextafterf(d, -kInfinity);
  ASSERT_EQ(d * kLog2E, -41.0F);
  EXPECT_EQ(mass(d, 0.0F), 0U);
  EXPECT_EQ(mass(d + 0x1p-16F, 0.0F), 1U);
  EXPECT_EQ(mass(d * (40.0F / 41.0F), 0.0F), 1U);
}

TEST(LogOfMass, PowersOfTwoAreExactMultiplesOfLn2) {
  EXPECT_EQ(log_of_mass(kOne), 0.0F);
  EXPECT_EQ(log_of_mass(2 * kOne), kLn2);
  EXPECT_EQ(log_of_mass(4 * kOne), 2.0F * kLn2);
  // 2^41 + 2^17 lies midway between two floats; the even one is 2^41.
  EXPECT_EQ(log_of_mass(2 * kOne + (uint64_t{1} << 17)), kLn2);
}

TEST(LogProbabilities, HandWorkedValues) {
  const std::vector<float> logits = {2.0F, 2.0F, -1e30F};
  std::vector<float> out(3);
  log_probabilities(logits, out);
  EXPECT_EQ(out[0], -kLn2);
  EXPECT_EQ(out[1], -kLn2);
  EXPECT_EQ(out[2], (-1e30F - 2.0F) - kLn2);
  const std::vector<float> one = {5.0F};
  log_probabilities(one, std::span(out).first(1));
  EXPECT_EQ(out[0], 0.0F);
}

TEST(LogProbabilities, AgreeWithBinary64) {
  const std::vector<float> logits = random_logits(4096, 1, 12.0F);
  std::vector<float> out(logits.size());
  log_probabilities(logits, out);
  double sum = 0.0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  for (size_t t = 0; t < logits.size(); ++t) {
    // |logprob| < 32, so each of the two subtractions errs by at most 2^-20, ln 2·log2 by less.
    EXPECT_NEAR(out[t], static_cast<double>(logits[t]) - std::log(sum), 0x1p-18) << t;
  }
}

TEST(Greedy, LargestLogitTiesToTheLowerIndex) {
  const DrawParams greedy = {.temperature = 0.0F};
  EXPECT_EQ(draw(std::vector<float>{1, 3, 2, 3}, greedy), 1);
  EXPECT_EQ(draw(std::vector<float>{0.0F, -0.0F}, greedy), 0);
  EXPECT_EQ(draw(std::vector<float>{-0.0F, 0.0F}, greedy), 0);
  EXPECT_EQ(draw(std::vector<float>{-5, -4}, greedy), 1);
}

TEST(Penalties, HandWorkedValues) {
  const std::vector<float> logits = {4.0F, -1.0F, 3.0F, 2.5F};
  DrawParams params = {.temperature = 0.0F, .repetition_penalty = 2.0F};
  params.counts = {{.token = 0, .in_context = true}};
  EXPECT_EQ(draw(logits, params), 2);  // 4 ÷ 2 < 3
  params.counts = {{.token = 0, .in_context = false, .in_answer = 0}};
  EXPECT_EQ(draw(logits, params), 0);
  // A negative logit is multiplied: −1·2 < −1.5.
  params.counts = {{.token = 0, .in_context = true}};
  EXPECT_EQ(draw(std::vector<float>{-1.0F, -1.5F}, params), 1);

  params = {.temperature = 0.0F, .presence_penalty = 1.25F};
  params.counts = {{.token = 0, .in_context = true, .in_answer = 3}};
  EXPECT_EQ(draw(logits, params), 2);  // 4 − 1.25 < 3, once whatever the count
  params.presence_penalty = 0.75F;
  EXPECT_EQ(draw(logits, params), 0);

  params = {.temperature = 0.0F, .frequency_penalty = 0.5F};
  params.counts = {{.token = 0, .in_context = true, .in_answer = 3}};
  EXPECT_EQ(draw(logits, params), 2);  // 4 − 3·0.5 < 3
  params.counts[0].in_answer = 1;
  EXPECT_EQ(draw(logits, params), 0);
}

TEST(Penalties, ComeBeforeBiasAndRepetitionBeforePresence) {
  // (4 ÷ 2) − 1 = 1, and not (4 − 1) ÷ 2 = 1.5.
  DrawParams params = {.temperature = 0.0F, .repetition_penalty = 2.0F, .presence_penalty = 1.0F};
  params.counts = {{.token = 0, .in_context = true, .in_answer = 1}};
  EXPECT_EQ(draw(std::vector<float>{4.0F, 1.25F}, params), 1);
  // (4 ÷ 2 − 1) + 2 = 3, and not (4 + 2) ÷ 2 − 1 = 2.
  params.bias = {{.token = 0, .bias = 2.0F}};
  EXPECT_EQ(draw(std::vector<float>{4.0F, 2.5F}, params), 0);
}

TEST(Mask, RemovesTokensEvenTheLikeliest) {
  std::vector<float> logits(40, 0.0F);
  logits[33] = 9.0F;
  DrawParams params = {.temperature = 0.0F};
  params.mask = {0x00000010U, 0x00000000U};
  EXPECT_EQ(draw(logits, params), 4);
  params.mask = {0U, 0x2U};
  EXPECT_EQ(draw(logits, params), 33);
  params.mask = {0U, 0U};
  EXPECT_EQ(draw(logits, params), -1);
  params.mask = {0U, 0xffffff00U};  // bits past the vocabulary
  EXPECT_EQ(draw(logits, params), -1);
}

TEST(Mask, ForbiddenTokensTakeNoPlaceInTopKAndNoMass) {
  const std::vector<float> logits = {9.0F, 1.0F, 0.5F, 0.0F};
  DrawParams params = {.top_k = 2};
  params.mask = {0xeU};
  EXPECT_THAT(drawable(logits, params), ElementsAre(1, 2));
  params = {.top_p = 0.99F};
  params.mask = {0xeU};
  EXPECT_THAT(drawable(logits, params), ElementsAre(1, 2, 3));
}

TEST(TopK, KeepsTheFirstInStableOrder) {
  const std::vector<float> logits = {1.0F, 2.0F, 1.0F, 1.0F};
  EXPECT_THAT(drawable(logits, {.top_k = 1}), ElementsAre(1));
  EXPECT_THAT(drawable(logits, {.top_k = 2}), ElementsAre(0, 1));  // of equals the lower index
  EXPECT_THAT(drawable(logits, {.top_k = 3}), ElementsAre(0, 1, 2));
  for (const int32_t k : {0, 4, 5, 1 << 30}) {
    EXPECT_THAT(drawable(logits, {.top_k = k}), ElementsAre(0, 1, 2, 3)) << k;
  }
}

TEST(TopP, HandWorkedValues) {
  // Four equal masses of 2^40: p·4·2^40 is the limit.
  const std::vector<float> logits(4, 1.0F);
  EXPECT_THAT(drawable(logits, {.top_p = 1e-30F}), ElementsAre(0));
  EXPECT_THAT(drawable(logits, {.top_p = 0.25F}), ElementsAre(0));  // 2^40 before the second: not below
  EXPECT_THAT(drawable(logits, {.top_p = 0.2500001F}), ElementsAre(0, 1));
  EXPECT_THAT(drawable(logits, {.top_p = 0.5F}), ElementsAre(0, 1));
  EXPECT_THAT(drawable(logits, {.top_p = 0.75F}), ElementsAre(0, 1, 2));
  EXPECT_THAT(drawable(logits, {.top_p = 0.76F}), ElementsAre(0, 1, 2, 3));
}

TEST(TopP, CountsTheMassesThatTopKLeaves) {
  const std::vector<float> logits(4, 1.0F);
  EXPECT_THAT(drawable(logits, {.top_k = 2, .top_p = 0.5F}), ElementsAre(0));
  EXPECT_THAT(drawable(logits, {.top_k = 2, .top_p = 0.51F}), ElementsAre(0, 1));
}

TEST(TopP, UsesTheMassesAfterTemperature) {
  // Shares at T = 1: 0.731, 0.269; at T = 4: 0.562, 0.438.
  const std::vector<float> logits = {1.0F, 0.0F};
  EXPECT_THAT(drawable(logits, {.top_p = 0.7F}), ElementsAre(0));
  EXPECT_THAT(drawable(logits, {.temperature = 4.0F, .top_p = 0.7F}), ElementsAre(0, 1));
}

TEST(MinP, HandWorkedValues) {
  const std::vector<float> logits = {0.0F, -1.0F, -2.0F, 0.0F};  // 1, 0.368, 0.135, 1 of the largest
  EXPECT_THAT(drawable(logits, {.min_p = 0.13F}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(drawable(logits, {.min_p = 0.14F}), ElementsAre(0, 1, 3));
  EXPECT_THAT(drawable(logits, {.min_p = 0.37F}), ElementsAre(0, 3));
  EXPECT_THAT(drawable(logits, {.min_p = 1.0F}), ElementsAre(0, 3));
}

TEST(Temperature, Extremes) {
  const std::vector<float> logits = {1.0F, 1.00001F, 0.0F};
  EXPECT_THAT(drawable(logits, {.temperature = 1e-6F}), ElementsAre(1));
  // At 10^6 all three are equally likely: 30,000 draws, each count within 5 standard deviations (82).
  for (const int count : histogram(logits, {.temperature = 1e6F}, 30000)) EXPECT_NEAR(count, 10000, 410);
}

TEST(Draw, FailsWhereAScaledValueOverflows) {
  const std::vector<float> logits = {1e33F, 0.0F};
  EXPECT_EQ(draw(logits, {.temperature = 1e-6F}), -1);
  DrawParams params = {.temperature = 1e-6F};
  params.mask = {0x2U};
  EXPECT_EQ(draw(logits, params), 1);  // what the mask forbids cannot fail it
  params = {.temperature = 0.0F, .repetition_penalty = 1e-6F};
  params.counts = {{.token = 0, .in_context = true}};
  EXPECT_EQ(draw(logits, params), -1);
}

TEST(Draw, NoiseIsTheRulesLetter) {
  const std::vector<float> logits = random_logits(50, 3, 3.0F);
  const DrawParams params = {.temperature = 0.75F, .seed = 0x123456789abcdefULL, .position = 77};
  int32_t best = -1;
  float best_value = -kInfinity;
  for (int32_t t = 0; t < 50; ++t) {
    const uint32_t k = philox4x32(params.seed, {params.position, static_cast<uint32_t>(t), 0, 0})[0] >> 9;
    const float u = (2.0F * static_cast<float>(k) + 1.0F) / 16777216.0F;
    const float e = -(kLn2 * log2_(u));
    const float value = logits[static_cast<size_t>(t)] / 0.75F + -(kLn2 * log2_(e));
    if (value > best_value) {
      best_value = value;
      best = t;
    }
  }
  EXPECT_EQ(draw(logits, params), best);
}

TEST(Draw, IsAFunctionOfSeedAndPositionAlone) {
  const std::vector<float> logits(1000, 0.0F);
  const DrawParams params = {.seed = 5, .position = 9};
  const int32_t token = draw(logits, params);
  EXPECT_EQ(draw(logits, params), token);
  int other_seeds = 0;
  int other_positions = 0;
  for (uint32_t i = 1; i <= 20; ++i) {
    other_seeds += draw(logits, {.seed = 5 + (uint64_t{i} << 32), .position = 9}) != token ? 1 : 0;
    other_positions += draw(logits, {.seed = 5, .position = 9 + i}) != token ? 1 : 0;
  }
  EXPECT_GE(other_seeds, 19);
  EXPECT_GE(other_positions, 19);
}

/// Pearson's statistic of `draws` draws against probabilities p.
double chi_square(const std::vector<int>& counts, const std::vector<double>& p, double draws) {
  double sum = 0.0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = draws * p[i];
    if (expected > 0.0) sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

TEST(Draw, FollowsSoftmax) {
  // 15 degrees of freedom: chi-square exceeds 44.3 once in 10,000 samples. The rarest token is expected 40
  // times or more.
  const std::vector<float> logits = random_logits(16, 11, 2.0F);
  constexpr uint32_t kDraws = 40000;
  for (const float temperature : {0.7F, 1.0F, 1.9F}) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{0xffffffffffffffff}}) {
      const std::vector<double> p = softmax(logits, static_cast<double>(temperature));
      ASSERT_GE(*std::min_element(p.begin(), p.end()) * kDraws, 40.0);
      const auto counts = histogram(logits, {.temperature = temperature, .seed = seed}, kDraws);
      EXPECT_LT(chi_square(counts, p, kDraws), 44.3) << temperature << " " << seed;
    }
  }
}

TEST(Draw, FollowsSoftmaxOfWhatTopKLeaves) {
  const std::vector<float> logits = {0.0F, 1.0F, 0.5F, -1.0F, 0.25F};
  std::vector<double> p = softmax(std::vector<float>{1.0F, 0.5F, 0.25F}, 1.0);
  p = {0.0, p[0], p[1], 0.0, p[2]};
  const auto counts = histogram(logits, {.top_k = 3, .seed = 4}, 20000);
  EXPECT_EQ(counts[0] + counts[3], 0);
  EXPECT_LT(chi_square(counts, p, 20000), 18.4);  // 2 degrees of freedom, once in 10,000
}

TEST(Evaluate, ReportsWhatIsAsked) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F, 3.0F};
  std::vector<float> all(4);
  log_probabilities(logits, all);

  RowResult result = evaluate(logits, {.target = 2});
  EXPECT_FALSE(result.failed);
  EXPECT_EQ(result.token, 2);
  EXPECT_EQ(result.logprob, all[2]);
  EXPECT_TRUE(result.top.empty());
  EXPECT_TRUE(result.all.empty());

  RowOutput output = {.draw = true, .top = 3, .all = true};
  output.params.temperature = 0.0F;
  output.params.bias = {{.token = 0, .bias = 50.0F}};
  result = evaluate(logits, output);
  EXPECT_EQ(result.token, 0);
  EXPECT_EQ(result.logprob, all[0]);  // of the raw logits, bias or not
  EXPECT_EQ(result.all, all);
  ASSERT_EQ(result.top.size(), 3U);
  EXPECT_EQ(result.top[0].token, 1);
  EXPECT_EQ(result.top[1].token, 3);
  EXPECT_EQ(result.top[2].token, 2);
  EXPECT_EQ(result.top[2].logprob, all[2]);

  EXPECT_EQ(evaluate(logits, {.top = 99}).top.size(), 4U);
  EXPECT_EQ(evaluate(logits, {}).token, -1);
}

TEST(Evaluate, TopIsByLogProbabilityNotByLogit) {
  // The difference of 2^-22 is lost when the normaliser (ln 2^16, between 8 and 16) is subtracted, so the
  // lower index comes first although its logit is the smaller.
  std::vector<float> logits(65536, 0.0F);
  logits[1] = 0x1p-22F;
  const RowResult result = evaluate(logits, {.top = 2, .all = true});
  ASSERT_EQ(result.all[0], result.all[1]);
  EXPECT_EQ(result.top[0].token, 0);
  EXPECT_EQ(result.top[1].token, 1);
}

TEST(Evaluate, NonFiniteLogitsFail) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    const RowResult result =
        evaluate(std::vector<float>{1.0F, bad, 2.0F}, {.target = 0, .top = 1, .all = true});
    EXPECT_TRUE(result.failed);
    EXPECT_EQ(result.token, -1);
    EXPECT_TRUE(result.top.empty());
    EXPECT_TRUE(result.all.empty());
  }
}

TEST(Evaluate, EverythingMaskedFails) {
  RowOutput output = {.draw = true, .top = 1};
  output.params.mask = {0U};
  const RowResult result = evaluate(std::vector<float>{1.0F, 2.0F}, output);
  EXPECT_TRUE(result.failed);
  EXPECT_EQ(result.token, -1);
}

TEST(Evaluate, ExtremeFiniteLogits) {
  const std::vector<float> logits = {3e38F, -3e38F};
  const RowResult result = evaluate(logits, {.target = 0});
  EXPECT_FALSE(result.failed);
  EXPECT_EQ(result.logprob, 0.0F);
  EXPECT_EQ(evaluate(logits, {.target = 1}).logprob, -kInfinity);
}

}  // namespace
}  // namespace tercet::reference
