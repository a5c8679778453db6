#include "backend/cpu/logits.h"

#include <numeric>

#include "backend/cpu/test_pair.h"
#include "backend/reference/draw.h"

namespace tercet::cpu {
namespace {

using LogitsTest = EveryLevel;
TERCET_EVERY_LEVEL(LogitsTest);

void expect_same(const RowResult& a, const RowResult& b, const std::string& what) {
  EXPECT_EQ(a.failed, b.failed) << what;
  EXPECT_EQ(a.token, b.token) << what;
  EXPECT_EQ(std::memcmp(&a.logprob, &b.logprob, 4), 0) << what;
  ASSERT_EQ(a.top.size(), b.top.size()) << what;
  for (size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token, b.top[i].token) << what;
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob) << what;
  }
  ASSERT_EQ(a.all.size(), b.all.size()) << what;
  EXPECT_TRUE(a.all.empty() || std::memcmp(a.all.data(), b.all.data(), a.all.size() * 4) == 0) << what;
}

/// Logits of several kinds: spread, peaked, full of ties, all alike, with zeros of both signs on top.
std::vector<std::vector<float>> test_logits(size_t vocabulary) {
  std::vector<std::vector<float>> out;
  const auto make = [&](auto value) {
    std::vector<float> x(vocabulary);
    for (size_t t = 0; t < x.size(); ++t) x[t] = value(reference::uniform(1, static_cast<uint32_t>(t)), t);
    out.push_back(x);
  };
  make([](float u, size_t) { return 8.0F * u; });
  make([](float u, size_t) { return 60.0F * u * u * u; });
  make([](float u, size_t t) { return t == 3 ? 40.0F : 10.0F * u; });
  make([](float u, size_t) { return static_cast<float>(static_cast<int>(4.0F * u)); });
  make([](float, size_t) { return 1.25F; });
  make([](float u, size_t t) { return t % 5 == 2 ? -0.0F : t % 7 == 3 ? 0.0F : -1.0F - 20.0F * (u + 1.0F); });
  make([](float u, size_t) { return 3e37F * u; });
  return out;
}

std::vector<DrawParams> test_params(size_t vocabulary) {
  std::vector<DrawParams> out;
  for (const float temperature : {0.0F, 0.3F, 1.0F, 2.5F}) {
    for (const int32_t top_k : {0, 1, 5, 300, 1 << 30}) {
      for (const float top_p : {1.0F, 0.95F, 0.5F, 1e-6F, 1.0F - 0x1p-24F}) {
        for (const float min_p : {0.0F, 0.05F, 1e-14F}) {
          DrawParams p;
          p.temperature = temperature;
          p.top_k = top_k;
          p.top_p = top_p;
          p.min_p = min_p;
          p.seed = 12345678901234567ULL + out.size();
          p.position = static_cast<uint32_t>(7 * out.size());
          if (out.size() % 3 == 1) {
            p.repetition_penalty = 1.3F;
            p.presence_penalty = 0.5F;
            p.frequency_penalty = -0.25F;
            p.counts = {{0, true, 0}, {3, true, 2}, {static_cast<int32_t>(vocabulary) - 1, false, 5}};
            p.bias = {{1, 4.0F}, {2, -100.0F}};
          }
          if (out.size() % 4 == 2) {
            p.mask.assign((vocabulary + 31) / 32, 0x5a5a5a5aU);
          }
          out.push_back(p);
        }
      }
    }
  }
  return out;
}

TEST_P(LogitsTest, DrawsAreTheReferences) {
  const Kernels& kernels = kernels_of(GetParam());
  for (const size_t vocabulary : {size_t{1}, size_t{15}, size_t{333}, size_t{5000}}) {
    const auto params = test_params(std::max(vocabulary, size_t{4}));
    const auto rows = test_logits(vocabulary);
    for (size_t i = 0; i < params.size(); ++i) {
      RowOutput output;
      output.draw = true;
      output.params = params[i];
      if (vocabulary < 4) {
        output.params.counts.clear();
        output.params.bias.clear();
        output.params.mask.clear();
      }
      // Each row meets each parameter at the small sizes, a part of them at the large one.
      for (size_t r = vocabulary > 1000 ? i % 3 : 0; r<rows.size(); r += vocabulary> 1000 ? 3 : 1) {
        expect_same(evaluate(kernels, rows[r], output), reference::evaluate(rows[r], output),
                    "row " + std::to_string(r) + " of " + std::to_string(vocabulary) + ", parameters " +
                        std::to_string(i));
      }
    }
  }
}

TEST_P(LogitsTest, ManySeedsDrawTheSame) {
  const Kernels& kernels = kernels_of(GetParam());
  const auto rows = test_logits(1000);
  RowOutput output;
  output.draw = true;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    output.params.seed = uint64_t{seed} << 28;
    output.params.position = seed;
    const auto& row = rows[seed % 4];
    expect_same(evaluate(kernels, row, output), reference::evaluate(row, output), std::to_string(seed));
  }
}

TEST_P(LogitsTest, LogProbabilitiesOfEverySize) {
  const Kernels& kernels = kernels_of(GetParam());
  for (const size_t vocabulary : {1, 2, 16, 17, 31, 4096, 120832}) {
    for (const auto& row : test_logits(vocabulary)) {
      RowOutput output;
      output.target = static_cast<int32_t>(vocabulary / 2);
      output.top = 20;
      output.all = true;
      expect_same(evaluate(kernels, row, output), reference::evaluate(row, output),
                  std::to_string(vocabulary));
    }
  }
}

TEST_P(LogitsTest, WhatFailsThere) {
  const Kernels& kernels = kernels_of(GetParam());
  const float infinity = std::numeric_limits<float>::infinity();
  RowOutput output;
  output.draw = true;
  for (const size_t at : {0, 15, 16, 40, 49}) {
    for (const float value : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> row(50, 1.0F);
      row[at] = value;
      EXPECT_TRUE(evaluate(kernels, row, output).failed);
    }
  }
  const std::vector<float> row(50, 3e38F);
  output.params.temperature = 0.5F;  // 6e38 is infinite
  EXPECT_TRUE(evaluate(kernels, row, output).failed);
  output.params.temperature = 1.0F;
  EXPECT_FALSE(evaluate(kernels, row, output).failed);
  output.params.bias = {{4, 3e38F}};
  EXPECT_TRUE(evaluate(kernels, row, output).failed);
  output.params.mask = {0xfffffff0U ^ 16U, ~0U};  // token 4 is forbidden
  EXPECT_FALSE(evaluate(kernels, row, output).failed);
  expect_same(evaluate(kernels, row, output), reference::evaluate(row, output), "masked");
  output.params.mask = {0, 0};
  EXPECT_TRUE(evaluate(kernels, row, output).failed);
}

TEST_P(LogitsTest, RowsOfAStepAndTheirFailures) {
  const auto ops = fast(3);
  TestRows h(3, 64);
  std::fill(h.values.begin(), h.values.end(), 1.0F);
  h.values[64] = std::numeric_limits<float>::quiet_NaN();
  const TestMatrix w(90, 64, 4, 64, 5);
  std::vector<RowOutput> outputs(4);
  const std::vector<int32_t> ids = {0, 1, 2, 2};
  for (size_t i = 0; i < 4; ++i) outputs[i].row = ids[i];
  outputs[3].all = true;
  std::vector<std::vector<RowResult>> results;
  for (Ops* backend : {ops.get(), reference_.get()}) {
    const auto step = backend->begin(plain_batch(3));
    TestRows logits(4, 90);
    backend->linear_of(*step, h.view(), ids, *backend->pack_linear({&w.data, 1}), logits.view());
    results.push_back(backend->evaluate(*step, logits.view(), outputs));
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(results[0][i].failed, i == 1);
    expect_same(results[0][i], results[1][i], std::to_string(i));
  }
}

}  // namespace
}  // namespace tercet::cpu
