#include "sampling/sampling_params.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

namespace tercet {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The error of the defaults after a change; empty where there is none. The vocabulary has 100 tokens.
std::string error_of(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  const Result<void> result = validate(params, 100);
  return result ? "" : result.error().message;
}

TEST(SamplingParams, AcceptsDefaultsAndBounds) {
  EXPECT_EQ(error_of([](SamplingParams&) {}), "");
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.temperature = 1e-6F;
              p.top_p = 1e-30F;
              p.top_k = -1;
              p.min_p = 0.0F;
              p.repetition_penalty = 0.01F;
              p.presence_penalty = -2.0F;
              p.frequency_penalty = -2.0F;
              p.logit_bias = {{0, -100.0F}, {99, 100.0F}};
              p.stop = std::vector<std::string>(64, std::string(1024, 'x'));
              p.stop_tokens = {0, 99};
              p.min_tokens = 5;
              p.max_tokens = 5;
              p.top_logprobs = kMaxTopLogprobs;
            }),
            "");
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.temperature = 1e6F;
              p.min_p = 1.0F;
              p.top_k = 1000;
              p.repetition_penalty = 100.0F;
              p.presence_penalty = 2.0F;
              p.frequency_penalty = 2.0F;
              p.max_tokens = 0;
            }),
            "");
  EXPECT_EQ(error_of([](SamplingParams& p) { p.temperature = 0.0F; }), "");
}

TEST(SamplingParams, RefusesEachValueOutOfBounds) {
  for (const float t : {-1.0F, 1e-7F, 2e6F, kInfinity, kNan}) {
    EXPECT_EQ(error_of([&](SamplingParams& p) { p.temperature = t; }),
              fmt::format("temperature must be 0 or from 1e-06 to 1e+06, not {}", t));
  }
  for (const float value : {0.0F, -0.5F, 1.5F, kNan}) {
    EXPECT_EQ(error_of([&](SamplingParams& p) { p.top_p = value; }),
              fmt::format("top_p must be above 0 and at most 1, not {}", value));
  }
  EXPECT_EQ(error_of([](SamplingParams& p) { p.top_k = -2; }),
            "top_k must be at least 1, or 0 or -1 for off, not -2");
  for (const float value : {-0.1F, 1.1F, kNan}) {
    EXPECT_EQ(error_of([&](SamplingParams& p) { p.min_p = value; }),
              fmt::format("min_p must be from 0 to 1, not {}", value));
  }
  for (const float value : {0.0F, 101.0F, kNan}) {
    EXPECT_EQ(error_of([&](SamplingParams& p) { p.repetition_penalty = value; }),
              fmt::format("repetition_penalty must be from 0.01 to 100, not {}", value));
  }
  for (const float value : {-2.1F, 2.1F, kNan}) {
    EXPECT_EQ(error_of([&](SamplingParams& p) { p.presence_penalty = value; }),
              fmt::format("presence_penalty must be from -2 to 2, not {}", value));
    EXPECT_EQ(error_of([&](SamplingParams& p) { p.frequency_penalty = value; }),
              fmt::format("frequency_penalty must be from -2 to 2, not {}", value));
  }
}

TEST(SamplingParams, RefusesBadBiases) {
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.logit_bias = {{100, 1.0F}};
            }),
            "logit_bias: token 100 is not in the vocabulary of 100");
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.logit_bias = {{-1, 1.0F}};
            }),
            "logit_bias: token -1 is not in the vocabulary of 100");
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.logit_bias = {{7, 1.0F}, {8, 1.0F}, {7, 2.0F}};
            }),
            "logit_bias names token 7 twice");
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.logit_bias = {{7, 101.0F}};
            }),
            "logit_bias of token 7 must be from -100 to 100, not 101");
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.logit_bias = {{7, kNan}};
            }),
            "logit_bias of token 7 must be from -100 to 100, not nan");
}

TEST(SamplingParams, RefusesBadStops) {
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.stop = {"a", ""};
            }),
            "stop: a string must have from 1 to 1024 bytes, not 0");
  EXPECT_EQ(error_of([](SamplingParams& p) { p.stop = {std::string(1025, 'x')}; }),
            "stop: a string must have from 1 to 1024 bytes, not 1025");
  EXPECT_EQ(error_of([](SamplingParams& p) { p.stop.assign(65, "x"); }), "stop: at most 64 strings, not 65");
  EXPECT_EQ(error_of([](SamplingParams& p) { p.stop_tokens = {100}; }),
            "stop_tokens: token 100 is not in the vocabulary of 100");
  EXPECT_EQ(error_of([](SamplingParams& p) { p.stop_tokens.assign(1025, 1); }),
            "stop_token_ids: at most 1024, not 1025");
}

TEST(SamplingParams, RefusesBadCounts) {
  EXPECT_EQ(error_of([](SamplingParams& p) { p.min_tokens = -1; }),
            "min_tokens must not be negative, but is -1");
  EXPECT_EQ(error_of([](SamplingParams& p) { p.max_tokens = -1; }),
            "max_tokens must not be negative, but is -1");
  EXPECT_EQ(error_of([](SamplingParams& p) {
              p.min_tokens = 6;
              p.max_tokens = 5;
            }),
            "min_tokens (6) is above max_tokens (5)");
  EXPECT_EQ(error_of([](SamplingParams& p) { p.top_logprobs = 129; }),
            "top_logprobs must be from 0 to 128, not 129");
  EXPECT_EQ(error_of([](SamplingParams& p) { p.top_logprobs = -1; }),
            "top_logprobs must be from 0 to 128, not -1");
}

}  // namespace
}  // namespace tercet
