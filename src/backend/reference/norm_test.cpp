#include "backend/reference/norm.h"

#include <gtest/gtest.h>

#include <vector>

namespace tercet::reference {
namespace {

TEST(RmsNorm, HandWorked) {
  // Squares 1, 1, 49, 49: mean 25, with eps 0 a factor of exactly 1/5.
  std::vector<float> h(4);
  rms_norm(std::vector<float>{1.0F, -1.0F, 7.0F, -7.0F}, std::vector<float>{1.0F, 2.0F, 3.0F, -1.0F}, 0.0F,
           h);
  const float fifth = 1.0F / 5.0F;
  EXPECT_EQ(h, (std::vector<float>{fifth, -fifth * 2.0F, (7.0F * fifth) * 3.0F, 7.0F * fifth}));
}

TEST(RmsNorm, EpsKeepsZeroRows) {
  std::vector<float> h(2);
  rms_norm(std::vector<float>{0.0F, 0.0F}, std::vector<float>{1.0F, 1.0F}, 1e-5F, h);
  EXPECT_EQ(h, (std::vector<float>{0.0F, 0.0F}));
  // Mean 9, eps 7: a factor of exactly 1/4.
  rms_norm(std::vector<float>{3.0F, 3.0F}, std::vector<float>{1.0F, 8.0F}, 7.0F, h);
  EXPECT_EQ(h, (std::vector<float>{0.75F, 6.0F}));
}

TEST(RmsNorm, InPlace) {
  std::vector<float> x{3.0F, 3.0F};
  rms_norm(x, std::vector<float>{1.0F, 8.0F}, 7.0F, x);
  EXPECT_EQ(x, (std::vector<float>{0.75F, 6.0F}));
}

}  // namespace
}  // namespace tercet::reference
