// Log-probabilities and draws through a backend's evaluate().
#include "backend/reference/draw.h"
#include "backend/reference/test_logits.h"
#include "backend/reference/test_pair.h"

namespace tercet::backend_test {
namespace {

using BackendLogitsTest = EveryBackend;
TERCET_EVERY_BACKEND(BackendLogitsTest);

/// Every row of `rows` with `output`, in one call.
std::vector<RowResult> evaluate_all(Ops& ops, const std::vector<std::vector<float>>& rows,
                                    const RowOutput& output) {
  const auto count = static_cast<int64_t>(rows.size());
  TestRows logits(count, static_cast<int64_t>(rows[0].size()));
  std::vector<RowOutput> outputs(rows.size(), output);
  for (size_t r = 0; r < rows.size(); ++r) {
    outputs[r].row = static_cast<int32_t>(r);
    std::copy(rows[r].begin(), rows[r].end(), logits.values.begin() + static_cast<int64_t>(r) * logits.cols);
  }
  const auto step = ops.begin(plain_batch(count));
  return ops.evaluate(*step, logits.view(), outputs);
}

void expect_all_same(Ops& ops, const std::vector<std::vector<float>>& rows, const RowOutput& output,
                     const std::string& what) {
  const std::vector<RowResult> results = evaluate_all(ops, rows, output);
  for (size_t r = 0; r < rows.size(); ++r) {
    expect_same(results[r], reference::evaluate(rows[r], output), what + ", row " + std::to_string(r));
  }
}

TEST_P(BackendLogitsTest, DrawsAreTheReferences) {
  const auto ops = fast();
  for (const size_t vocabulary : {5, 333}) {
    const auto rows = test_logits(vocabulary);
    const auto params = test_params(vocabulary);
    for (size_t i = 0; i < params.size(); i += brief() ? 8 : 1) {
      RowOutput output;
      output.draw = true;
      output.params = params[i];
      expect_all_same(*ops, rows, output, std::to_string(vocabulary) + ", parameters " + std::to_string(i));
    }
  }
}

TEST_P(BackendLogitsTest, ManySeedsDrawTheSame) {
  const auto ops = fast();
  const auto rows = test_logits(10000);
  RowOutput output;
  output.draw = true;
  for (uint32_t seed = 0; seed < (brief() ? 4 : 60); ++seed) {
    output.params.seed = uint64_t{seed} << 28;
    output.params.position = seed;
    output.params.temperature = seed % 3 == 0 ? 1.0F : 0.1F * static_cast<float>(seed);
    expect_all_same(*ops, rows, output, std::to_string(seed));
  }
}

TEST_P(BackendLogitsTest, LogProbabilitiesOfEverySize) {
  const auto ops = fast();
  for (const int32_t vocabulary : {1, 2, 31, 4096, 8193, 120832}) {
    const auto rows = test_logits(static_cast<size_t>(vocabulary));
    RowOutput output;
    output.target = vocabulary / 2;
    output.all = true;
    expect_all_same(*ops, rows, output, std::to_string(vocabulary));
    output.top = 20;
    output.all = false;
    expect_all_same(*ops, rows, output, std::to_string(vocabulary));
  }
}

TEST_P(BackendLogitsTest, WhatIsNotFiniteFails) {
  const auto ops = fast();
  RowOutput output;
  output.draw = true;
  std::vector<std::vector<float>> rows;
  for (const size_t at : {0, 31, 49}) {
    for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
      rows.emplace_back(50, 1.0F);
      rows.back()[at] = value;
    }
  }
  for (const RowResult& result : evaluate_all(*ops, rows, output)) EXPECT_TRUE(result.failed);
  const std::vector<std::vector<float>> large = {std::vector<float>(50, 3e38F)};
  output.params.temperature = 0.5F;  // 6e38 is infinite
  EXPECT_TRUE(evaluate_all(*ops, large, output)[0].failed);
  output.params.temperature = 1.0F;
  EXPECT_FALSE(evaluate_all(*ops, large, output)[0].failed);
}

TEST_P(BackendLogitsTest, RowsOfAStepAndTheirFailures) {
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
}  // namespace tercet::backend_test
