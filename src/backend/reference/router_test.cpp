#include "backend/reference/router.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/exact_math.h"

namespace tercet::reference {
namespace {

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice choose(const std::vector<float>& logits, const std::vector<float>& bias, RouterParams params) {
  Choice c{std::vector<int32_t>(static_cast<size_t>(params.chosen)),
           std::vector<float>(static_cast<size_t>(params.chosen))};
  choose_experts(logits, bias, params, c.experts, c.weights);
  return c;
}

TEST(Router, ChoosesByScorePlusBiasAndWeighsByScore) {
  const std::vector<float> logits{0.0F, 2.0F, -3.0F, 1.0F};
  const Choice c =
      choose(logits, {0.0F, 0.0F, 1.0F, 0.0F}, {.chosen = 2, .scaling = 2.0F, .normalise = true});
  EXPECT_EQ(c.experts, (std::vector<int32_t>{1, 2}));  // the bias lifts expert 2; ascending order
  const float s1 = sigmoid(2.0F), s2 = sigmoid(-3.0F);
  const float sum = ((0.0F + s2) + s1) + 1e-20F;  // in the order of choice: 1.047 before 0.881
  EXPECT_EQ(c.weights, (std::vector<float>{(s1 / sum) * 2.0F, (s2 / sum) * 2.0F}));
}

TEST(Router, TiesGoToTheLowerIndex) {
  const Choice c = choose(std::vector<float>(8, 0.25F), std::vector<float>(8, 0.0F),
                          {.chosen = 3, .scaling = 1.0F, .normalise = true});
  EXPECT_EQ(c.experts, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Router, WithoutNormalisation) {
  const Choice c = choose({3.0F, -1.0F}, {0.0F, 0.0F}, {.chosen = 1, .scaling = 2.826F, .normalise = false});
  EXPECT_EQ(c.weights[0], sigmoid(3.0F) * 2.826F);
}

}  // namespace
}  // namespace tercet::reference
