#include "backend/cpu/logits.h"

#include <gtest/gtest.h>

#include <limits>

#include "backend/cpu/level.h"
#include "backend/reference/draw.h"
#include "backend/reference/test_logits.h"

namespace tercet::cpu {
namespace {

using backend_test::expect_same;
using backend_test::test_logits;
using backend_test::test_params;

using LogitsTest = testing::TestWithParam<CpuLevel>;
INSTANTIATE_TEST_SUITE_P(Levels, LogitsTest, testing::ValuesIn(available_levels()),
                         [](const auto& level) { return std::string(kernels_of(level.param).name); });

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

}  // namespace
}  // namespace tercet::cpu
