#include <memory>

#include "backend/reference/router.h"
#include "backend/reference/test_pair.h"

namespace tercet::backend_test {
namespace {

using ExpertsTest = EveryBackend;
TERCET_EVERY_BACKEND(ExpertsTest);

struct Layer {
  std::vector<std::unique_ptr<TestMatrix>> memory;
  std::vector<MatrixData> gate, up, down;
};

/// `mixed`: experts of several forms, as a checkpoint with bits for each module may have them.
Layer make_layer(int64_t count, int64_t hidden, int64_t inter, bool mixed) {
  Layer layer;
  const auto make = [&](std::vector<MatrixData>& to, int64_t n, int64_t k, int bits, int group) {
    layer.memory.push_back(std::make_unique<TestMatrix>(n, k, bits, group, 100 + 3 * layer.memory.size()));
    to.push_back(layer.memory.back()->data);
  };
  for (int64_t e = 0; e < count; ++e) {
    const bool odd = mixed && e % 2 == 1;
    make(layer.gate, inter, hidden, odd ? 8 : 4, odd ? 32 : 64);
    make(layer.up, inter, hidden, mixed && e % 3 == 1 ? 0 : 4, 64);
    make(layer.down, hidden, inter, odd ? 0 : 4, 64);
  }
  return layer;
}

/// Rows that choose few experts, all of them, or ever the same ones.
std::vector<int32_t> choices(int64_t rows, int64_t chosen, int64_t count, int pattern) {
  std::vector<int32_t> out;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = pattern == 0 ? 0 : (r * (pattern == 1 ? 1 : 5)) % (count - chosen + 1);
    for (int64_t j = 0; j < chosen; ++j) out.push_back(static_cast<int32_t>(first + j));
  }
  return out;
}

TEST_P(ExpertsTest, AnyRowsAndChoicesGiveTheReferencesBits) {
  constexpr int64_t kHidden = 192, kInter = 64, kCount = 7, kChosen = 3;
  const auto ops = fast();
  for (const bool mixed : {false, true}) {
    const Layer layer = make_layer(kCount, kHidden, kInter, mixed);
    const auto plain = reference_->pack_experts(layer.gate, layer.up, layer.down);
    const auto packed = ops->pack_experts(layer.gate, layer.up, layer.down);
    EXPECT_EQ(packed->count, kCount);
    EXPECT_EQ(packed->inter, kInter);
    EXPECT_EQ(packed->out, kHidden);
    for (const int pattern : {0, 1, 2}) {
      for (const int64_t rows : {1, 2, 8, 9, 33}) {
        if (brief() && (pattern != 2 || rows % 8 != 1 || (mixed && rows != 9))) continue;
        TestRows h = hard_rows(rows, kHidden, 11);
        std::vector<int32_t> experts = choices(rows, kChosen, kCount, pattern);
        std::vector<float> weights = random_values(rows * kChosen, 12);
        const Routes routes{experts.data(), weights.data(), rows, kChosen};
        TestRows expected(rows * kChosen, kInter), a(rows * kChosen, kInter);
        const auto plain_step = reference_->begin(plain_batch(rows));
        const auto step = ops->begin(plain_batch(rows));
        reference_->experts_gate_up(*plain_step, h.view(), routes, *plain, expected.view());
        ops->experts_gate_up(*step, h.view(), routes, *packed, a.view());
        EXPECT_TRUE(a == expected) << rows << " rows, pattern " << pattern << ", mixed " << mixed;

        TestRows shared = hard_rows(rows, kHidden, 13);
        TestRows expected_z(rows, kHidden), z(rows, kHidden);
        reference_->experts_down(*plain_step, expected.view(), routes, *plain, shared.view(),
                                 expected_z.view());
        ops->experts_down(*step, a.view(), routes, *packed, shared.view(), z.view());
        EXPECT_TRUE(z == expected_z) << rows << " rows, pattern " << pattern << ", mixed " << mixed;
        reference_->experts_down(*plain_step, expected.view(), routes, *plain, {}, expected_z.view());
        ops->experts_down(*step, a.view(), routes, *packed, {}, z.view());
        EXPECT_TRUE(z == expected_z);
        EXPECT_EQ(ops->failed(*step), reference_->failed(*plain_step));
      }
    }
  }
}

TEST_P(ExpertsTest, FailedRowsAreFlagged) {
  const auto ops = fast(3);
  const Layer layer = make_layer(4, 128, 64, false);
  const auto plain = reference_->pack_experts(layer.gate, layer.up, layer.down);
  const auto packed = ops->pack_experts(layer.gate, layer.up, layer.down);
  std::vector<int32_t> experts = choices(5, 2, 4, 1);
  std::vector<float> weights = random_values(10, 14);
  const Routes routes{experts.data(), weights.data(), 5, 2};
  TestRows h = hard_rows(5, 128, 15);
  h.values[2 * 128 + 1] = std::numeric_limits<float>::infinity();
  TestRows expected(10, 64), a(10, 64), expected_z(5, 128), z(5, 128);
  const auto plain_step = reference_->begin(plain_batch(5));
  const auto step = ops->begin(plain_batch(5));
  reference_->experts_gate_up(*plain_step, h.view(), routes, *plain, expected.view());
  ops->experts_gate_up(*step, h.view(), routes, *packed, a.view());
  EXPECT_TRUE(a == expected);
  EXPECT_EQ(ops->failed(*step), (std::vector<uint8_t>{0, 0, 1, 0, 0}));
  for (TestRows* rows : {&expected, &a}) rows->values[9 * 64 + 3] = std::numeric_limits<float>::quiet_NaN();
  reference_->experts_down(*plain_step, expected.view(), routes, *plain, {}, expected_z.view());
  ops->experts_down(*step, a.view(), routes, *packed, {}, z.view());
  EXPECT_TRUE(z == expected_z);
  EXPECT_EQ(ops->failed(*step), (std::vector<uint8_t>{0, 0, 1, 0, 1}));
}

TEST_P(ExpertsTest, TheRouterChoosesAsTheReferenceDoes) {
  const auto ops = fast();
  for (const int64_t count : {4, 32, 37}) {
    for (const int bits : {8, 4, 0}) {
      const TestMatrix w(count, 256, bits, 64, 40);
      const auto plain = reference_->pack_linear({&w.data, 1});
      const auto packed = ops->pack_linear({&w.data, 1});
      for (const float bias_size : {0.0F, 0.3F, 0x1p21F}) {  // the last: steps of ¼, so that most are ties
        for (const bool normalise : {true, false}) {
          if (brief() && (count != 37 || !normalise)) continue;
          constexpr int64_t kRows = 27;
          std::vector<float> bias = random_values(count, 41);
          for (float& b : bias) b = bias_size == 0x1p21F ? bias_size : bias_size * b;
          TestRows h = hard_rows(kRows, 256, 42);
          for (float& x : h.values) x *= 0.05F;
          h.values[5 * 256 + 8] = std::numeric_limits<float>::quiet_NaN();
          h.values[6 * 256 + 8] = 0x1p62F;
          const RouterParams params{4, 2.826F, normalise};
          std::vector<int32_t> expected(kRows * 4, -1), experts(kRows * 4, -1);
          std::vector<float> expected_weights(kRows * 4, -1.0F), weights(kRows * 4, -1.0F);
          const auto plain_step = reference_->begin(plain_batch(kRows));
          const auto step = ops->begin(plain_batch(kRows));
          reference_->route(*plain_step, h.view(), *plain, view(bias), params,
                            {expected.data(), expected_weights.data(), kRows, 4});
          ops->route(*step, h.view(), *packed, view(bias), params,
                     {experts.data(), weights.data(), kRows, 4});
          EXPECT_EQ(experts, expected) << count << " experts, " << bits << " bits, bias " << bias_size;
          EXPECT_EQ(std::memcmp(weights.data(), expected_weights.data(), weights.size() * 4), 0);
          EXPECT_EQ(ops->failed(*step), reference_->failed(*plain_step));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tercet::backend_test
