#include "apps/options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/arguments.h"

namespace tercet {
namespace {

struct Parsed {
  ModelOptions model;
  SamplingOptions sampling;
  std::string error;
};

Parsed parse(const std::vector<std::string>& arguments) {
  CLI::App app("", "tercet test");
  Parsed parsed;
  add_model_options(app, parsed.model);
  add_sampling_options(app, parsed.sampling);
  if (const Result<bool> filled = fill_options(app, arguments); !filled)
    parsed.error = filled.error().message;
  return parsed;
}

TEST(Options, LlamaCppDialect) {
  const Parsed p = parse(
      {"-m",  "folder", "-c", "32k", "-t",  "2",       "-n", "64",      "--temp", "0.5", "--repeat-penalty",
       "1.1", "-s",     "42", "-b",  "256", "--top-k", "40", "--min-p", "0.05",   "-r",  "END"});
  ASSERT_EQ(p.error, "");
  EXPECT_EQ(p.model.model, "folder");
  EXPECT_EQ(p.model.context, 32768);
  EXPECT_EQ(p.model.threads, 2);
  EXPECT_EQ(p.model.chunk, 256);
  EXPECT_EQ(p.sampling.max_tokens, 64);
  EXPECT_EQ(p.sampling.temperature, 0.5);
  EXPECT_EQ(p.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(p.sampling.seed, 42U);
  EXPECT_EQ(p.sampling.top_k, 40);
  EXPECT_EQ(p.sampling.min_p, 0.05);
  EXPECT_EQ(p.sampling.stop, std::vector<std::string>{"END"});
}

TEST(Options, LayersOfTheGpu) {
  const auto layers = [](const char* text) { return parse({"folder", "-ngl", text}).model.gpu_layers; };
  EXPECT_EQ(parse({"folder"}).model.gpu_layers, kLayersThatFit);
  for (const char* text : {"auto", "-1"}) EXPECT_EQ(layers(text), kLayersThatFit) << text;
  EXPECT_EQ(layers("all"), kAllLayers);
  EXPECT_EQ(layers("0"), 0);
  EXPECT_EQ(layers("1k"), 1024);
  for (const char* text : {"-2", "some", "2G"}) {
    EXPECT_EQ(parse({"folder", "-ngl", text}).error,
              fmt::format("--ngl: expected a number of layers, all or auto, found {}", text));
  }
}

TEST(Options, VllmDialect) {
  const Parsed p = parse({"folder",
                          "--max-model-len",
                          "4096",
                          "--max-tokens=64",
                          "--temperature",
                          "0",
                          "-tp",
                          "2",
                          "--pipeline-parallel-size",
                          "3",
                          "--repetition-penalty",
                          "1.2",
                          "--presence-penalty",
                          "-0.5",
                          "--frequency-penalty",
                          "0.25",
                          "--top-p",
                          "0.9",
                          "--max-num-batched-tokens",
                          "2k"});
  ASSERT_EQ(p.error, "");
  EXPECT_EQ(p.model.model, "folder");
  EXPECT_EQ(p.model.context, 4096);
  EXPECT_EQ(p.model.tensor_shards, 2);
  EXPECT_EQ(p.model.pipeline_stages, 3);
  EXPECT_EQ(p.model.chunk, 2048);
  EXPECT_EQ(p.sampling.max_tokens, 64);
  EXPECT_EQ(p.sampling.temperature, 0.0);
  EXPECT_EQ(p.sampling.repetition_penalty, 1.2);
  EXPECT_EQ(p.sampling.presence_penalty, -0.5);
  EXPECT_EQ(p.sampling.frequency_penalty, 0.25);
  EXPECT_EQ(p.sampling.top_p, 0.9);
}

TEST(Options, EveryAliasMeansTheSame) {
  for (const char* name : {"-c", "--ctx", "--ctx-size", "--max-model-len"}) {
    EXPECT_EQ(parse({"m", name, "7"}).model.context, 7) << name;
  }
  for (const char* name : {"-n", "--predict", "--n-predict", "--max-tokens"}) {
    EXPECT_EQ(parse({"m", name, "7"}).sampling.max_tokens, 7) << name;
  }
  for (const char* name : {"-b", "--batch-size", "--chunk", "--max-num-batched-tokens"}) {
    EXPECT_EQ(parse({"m", name, "7"}).model.chunk, 7) << name;
  }
  for (const char* name : {"-pp", "--pp", "--pipeline-parallel-size"}) {
    EXPECT_EQ(parse({"m", name, "7"}).model.pipeline_stages, 7) << name;
  }
  for (const char* name : {"-tp", "--tp", "--tensor-parallel-size"}) {
    EXPECT_EQ(parse({"m", name, "7"}).model.tensor_shards, 7) << name;
  }
}

TEST(Options, WhatIsNotGivenIsLeftToTheCheckpoint) {
  const Parsed p = parse({"folder"});
  ASSERT_EQ(p.error, "");
  EXPECT_FALSE(p.sampling.temperature);
  EXPECT_FALSE(p.sampling.top_p);
  EXPECT_FALSE(p.sampling.top_k);
  EXPECT_FALSE(p.sampling.seed);
  EXPECT_FALSE(p.sampling.max_tokens);
  EXPECT_EQ(p.model.context, 0);
  EXPECT_EQ(p.model.backend, "auto");
}

TEST(Options, MinusOneMeansNoLimitAndNoSeed) {
  const Parsed p = parse({"folder", "-n", "-1", "-s", "-1", "--top-k", "-1"});
  ASSERT_EQ(p.error, "");
  EXPECT_FALSE(p.sampling.max_tokens);
  EXPECT_FALSE(p.sampling.seed);
  EXPECT_EQ(p.sampling.top_k, -1);
}

TEST(Options, StopsAndBiasesRepeatAndLeaveTheModelAlone) {
  const Parsed p = parse({"--stop", "a", "--stop", "b", "--logit-bias", "5+1.5", "--logit-bias", "6-2",
                          "--stop-token-ids", "9", "folder"});
  ASSERT_EQ(p.error, "");
  EXPECT_EQ(p.model.model, "folder");
  EXPECT_EQ(p.sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(p.sampling.stop_tokens, std::vector<int32_t>{9});
  ASSERT_EQ(p.sampling.logit_bias.size(), 2U);
  EXPECT_EQ(p.sampling.logit_bias[0].token, 5);
  EXPECT_EQ(p.sampling.logit_bias[0].bias, 1.5F);
  EXPECT_EQ(p.sampling.logit_bias[1].token, 6);
  EXPECT_EQ(p.sampling.logit_bias[1].bias, -2.0F);
}

TEST(Options, AModelIsNeeded) { EXPECT_EQ(parse({}).error, "--model is required"); }

TEST(Options, TheWholeRangeOfSeedsIsReadExactly) {
  EXPECT_EQ(parse({"m", "-s", "9223372036854775807"}).sampling.seed, 9223372036854775807U);
}

TEST(LogitBias, SaysWhatItExpects) {
  for (const char* text : {"", "5", "+1", "5+", "5+x", "-5+1", "5+1e9", "99999999999+1"}) {
    const auto parsed = parse_logit_bias(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().message,
              fmt::format("'{}' is not a token and a bias (like 15043+1 or 15043-0.5)", text));
  }
  EXPECT_EQ(parse({"m", "--logit-bias", "x"}).error,
            "--logit-bias: 'x' is not a token and a bias (like 15043+1 or 15043-0.5)");
}

}  // namespace
}  // namespace tercet
