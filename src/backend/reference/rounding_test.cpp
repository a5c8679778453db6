#include "backend/reference/rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/reference/hard_rows.h"
#include "ops/exact_math.h"

namespace tercet::reference {
namespace {

TEST(LaneSum, FollowsTheWrittenOrder) {
  // 513 elements: lane 0 gets three of them, lane 1 two …, then the tree of 256 lanes.
  std::vector<float> x(513);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0F + static_cast<float>(i % 89) * 0x1p-9F;
  std::vector<float> lane(256, 0.0F);
  for (size_t i = 0; i < x.size(); ++i) lane[i % 256] = std::fmaf(x[i], x[i], lane[i % 256]);
  for (size_t width = 256; width > 1; width /= 2) {
    for (size_t j = 0; j < width / 2; ++j) lane[j] += lane[j + width / 2];
  }
  EXPECT_EQ(lane_sum_of_squares(x), lane[0]);
  EXPECT_EQ(lane_sum_of_squares(std::vector<float>{3.0F, 4.0F}), 25.0F);
  EXPECT_EQ(lane_sum_of_squares({}), 0.0F);
}

TEST(Norm, IsScaledByAPowerOfTwo) {
  EXPECT_EQ(norm_of(std::vector<float>{3.0F, 4.0F}), 5.0F);
  EXPECT_EQ(norm_of(std::vector<float>{0x3p-60F, 0x4p-60F}), 0x5p-60F);  // squares alone would underflow
  EXPECT_EQ(norm_of(std::vector<float>{0x3p+60F, 0x4p+60F}), 0x5p+60F);  // or overflow
  EXPECT_EQ(norm_of(std::vector<float>(64, 0.0F)), 0.0F);
}

TEST(GroupExponents, FloorsAtTheLeafsLargestMinus16) {
  std::vector<float> x(4 * 64, 0.0F);
  x[0] = 1.0F;        // E = 0
  x[64] = 0x1p-15F;   // E = −15: above the floor
  x[128] = 0x1p-17F;  // E = −17: raised to −16
  std::vector<int> e(4);
  ASSERT_TRUE(group_exponents(x, 64, 1, RowForm::affine, e));
  EXPECT_EQ(e, (std::vector<int>{0, -15, -16, -16}));
  ASSERT_TRUE(group_exponents(x, 64, 2, RowForm::affine, e));  // a leaf of its own for the last two
  EXPECT_EQ(e, (std::vector<int>{0, -15, -17, -33}));
  ASSERT_TRUE(group_exponents(std::vector<float>(128, 0.0F), 64, 1, RowForm::affine, std::span(e).first(2)));
  EXPECT_EQ(e[0], -64);
}

TEST(GroupExponents, FloatsGoByTheirNorm) {
  std::vector<float> x(64, 1.0F);  // norm 8, and 8·(1 + 2^-9) needs 2^4
  std::vector<int> e(1);
  ASSERT_TRUE(group_exponents(x, 64, 1, RowForm::floats, e));
  EXPECT_EQ(e[0], 4);
}

TEST(GroupExponents, RefusesWhatIsNotFiniteOrTooLarge) {
  std::vector<int> e(1);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf(""), 0x1.8p63F}) {
    for (const RowForm form : {RowForm::affine, RowForm::floats}) {
      std::vector<float> x(64, 1.0F);
      x[17] = bad;
      EXPECT_FALSE(group_exponents(x, 64, 1, form, e)) << bad;
    }
  }
  std::vector<float> x(64, 0x1p62F);  // finite, but their norm is above 2^63
  EXPECT_TRUE(group_exponents(x, 64, 1, RowForm::affine, e));
  EXPECT_FALSE(group_exponents(x, 64, 1, RowForm::floats, e));
}

class RoundRow : public testing::TestWithParam<RowForm> {};

TEST_P(RoundRow, IsWholeNumbersOfTheUnitWithinTheBound) {
  const int bits = GetParam() == RowForm::affine ? 13 : 12;
  for (const std::vector<float>& x : hard_rows(8 * 64 * 2)) {
    RoundedRows out = make_rounded(1, static_cast<int64_t>(x.size()), 64);
    std::vector<float> rest(x.size());
    ASSERT_TRUE(round_row(x, GetParam(), out, 0, rest));
    for (size_t i = 0; i < x.size(); ++i) {
      const float unit = out.unit[i / 64];
      const double rounded = static_cast<double>(out.n[i]) * unit;
      EXPECT_LE(std::abs(out.n[i]), 1 << bits);
      // Within half a unit or half of its own 11-bit step, whichever is larger; and the rest is exact.
      EXPECT_LE(std::abs(x[i] - rounded), std::max(unit / 2.0, std::abs(x[i]) * 0x1p-11)) << i;
      EXPECT_EQ(static_cast<double>(x[i]) - rounded, rest[i]);
    }
    for (size_t g = 0; g < out.sum.size(); ++g) {
      int32_t sum = 0;
      for (size_t i = 0; i < 64; ++i) sum += out.n[g * 64 + i];
      EXPECT_EQ(out.sum[g], sum);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, RoundRow, testing::Values(RowForm::affine, RowForm::floats));

TEST(RoundRow, AFailedRowBecomesZeros) {
  std::vector<float> x(64, 1.0F);
  x[3] = std::nanf("");
  RoundedRows out = make_rounded(1, 64, 64);
  EXPECT_FALSE(round_row(x, RowForm::affine, out, 0, {}));
  EXPECT_EQ(out.n, std::vector<int16_t>(64, 0));
}

}  // namespace
}  // namespace tercet::reference
