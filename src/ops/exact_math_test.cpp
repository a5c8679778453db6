#include "ops/exact_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "ops/exact_math_digest.h"
#include "ops/leaves.h"

namespace tercet {
namespace {

/// Every float in ./test --full, one in 997 otherwise (a prime, so that all low bits occur).
uint32_t stride() { return std::getenv("TERCET_FULL") != nullptr ? 1 : 997; }

double ulps(float got, double want) {
  const auto rounded = static_cast<float>(want);
  const double ulp =
      std::nextafter(std::abs(rounded), std::numeric_limits<float>::infinity()) - std::abs(rounded);
  return std::abs(static_cast<double>(got) - want) / ulp;
}

template <class Visit>
void each_float(float from, float to, Visit visit) {
  for (uint64_t bits = float_bits(from); bits <= float_bits(to); bits += stride()) {
    visit(float_from_bits(static_cast<uint32_t>(bits)));
  }
  visit(to);
}

TEST(ExactMath, Exp2WithinOneUlp) {
  double worst = 0;
  const auto check = [&](float y) {
    worst = std::max(worst, ulps(exp2_(y), std::exp2(static_cast<double>(y))));
  };
  each_float(0.0F, 127.99999F, check);
  each_float(-0.0F, -126.0F, check);
  EXPECT_LT(worst, 1.0);
  EXPECT_EQ(exp2_(0.0F), 1.0F);
  EXPECT_EQ(exp2_(-126.0F), 0x1p-126F);
  EXPECT_EQ(exp2_(std::nextafter(-126.0F, -200.0F)), 0.0F);
  EXPECT_EQ(exp2_(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_TRUE(std::isinf(exp2_(128.0F)));
  EXPECT_TRUE(std::isnan(exp2_(std::nanf(""))));
  for (int e = -126; e < 128; ++e) EXPECT_EQ(exp2_(static_cast<float>(e)), std::ldexp(1.0F, e));
}

TEST(ExactMath, Log2WithinTwoUlps) {
  double worst = 0;
  const auto check = [&](float x) {
    if (x != 1.0F) worst = std::max(worst, ulps(log2_(x), std::log2(static_cast<double>(x))));
  };
  each_float(std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), check);
  for (uint32_t i = 0; i < 100000; ++i) {
    check(float_from_bits(0x3f800000U + i));
    check(float_from_bits(0x3f800000U - i));
  }
  EXPECT_LT(worst, 2.0);
  for (int e = -126; e < 128; ++e) EXPECT_EQ(log2_(std::ldexp(1.0F, e)), static_cast<float>(e));
}

TEST(ExactMath, SineAndCosineAreRoundedOnce) {
  double worst = 0;
  const auto check = [&](float x) {
    const SinCos got = sin_cos(x);
    worst = std::max(worst, ulps(got.sin, std::sin(static_cast<double>(x))));
    worst = std::max(worst, ulps(got.cos, std::cos(static_cast<double>(x))));
  };
  each_float(0x1p-20F, 262144.0F, check);
  for (int i = 0; i < 262144; i += 5) check(static_cast<float>(i));
  EXPECT_LT(worst, 0.51);
  EXPECT_EQ(sin_cos(0.0F).sin, 0.0F);
  EXPECT_EQ(sin_cos(0.0F).cos, 1.0F);
}

TEST(ExactMath, RopeFrequencies) {
  for (int i = 0; i < 64; ++i) {
    const double want = std::pow(11158840.0, -i / 64.0);
    EXPECT_LE(ulps(rope_frequency(11158840.0, i), want), 0.5001) << i;
  }
  EXPECT_EQ(rope_frequency(11158840.0, 0), 1.0F);
}

TEST(ExactMath, SigmoidErrorIsAsStated) {
  const auto check = [&](float x) {
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    EXPECT_LE(std::abs(sigmoid(x) / want - 1.0), 1.5e-7 * (1.0 + std::abs(x) / 2)) << x;
  };
  each_float(0x1p-30F, 120.0F, check);
  each_float(-0x1p-30F, -87.0F, check);
  EXPECT_EQ(sigmoid(0.0F), 0.5F);
  EXPECT_EQ(sigmoid(-1000.0F), 0.0F);
  EXPECT_EQ(sigmoid(1000.0F), 1.0F);
}

TEST(ExactMath, NearestTiesToEven) {
  EXPECT_EQ(nearest(0.5F), 0.0F);
  EXPECT_EQ(nearest(1.5F), 2.0F);
  EXPECT_EQ(nearest(2.5F), 2.0F);
  EXPECT_EQ(nearest(-2.5F), -2.0F);
  EXPECT_TRUE(std::signbit(nearest(-0.25F)));
  EXPECT_EQ(nearest(8388609.0F), 8388609.0F);
  EXPECT_EQ(nearest(4194303.5F), 4194304.0F);
  each_float(0.0F, 0x1p25F, [](float x) { EXPECT_EQ(nearest(x), std::nearbyint(x)); });
}

TEST(ExactMath, CeilExponent) {
  EXPECT_EQ(ceil_exponent(1.0F), 0);
  EXPECT_EQ(ceil_exponent(std::nextafter(1.0F, 2.0F)), 1);
  EXPECT_EQ(ceil_exponent(0.75F), 0);
  EXPECT_EQ(ceil_exponent(0.0F), kMinExponent);
  EXPECT_EQ(ceil_exponent(1e-40F), kMinExponent);
  EXPECT_EQ(ceil_exponent(0x1p63F), 63);
  EXPECT_TRUE(exponent_fails(ceil_exponent(0x1.000002p63F)));
  EXPECT_TRUE(exponent_fails(ceil_exponent(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(exponent_fails(ceil_exponent(std::nanf(""))));
}

// The rule's own words in binary64, where nothing is rounded but the quotient.
double round_by_the_book(double x, int step) {
  if (x == 0) return x;
  const int own = static_cast<int>(std::floor(std::log2(std::abs(x)))) - 10;
  const double unit = std::ldexp(1.0, std::max(step, own));
  return std::nearbyint(x / unit) * unit;
}

TEST(ExactMath, RoundToStepIsOneRounding) {
  for (const int step : {-77, -20, -13, -12, 0, 7, 50}) {
    for (int e = -40; e <= 13; ++e) {
      for (uint32_t m = 0; m < 0x800000U; m += 0x1fff + 4096) {
        const float x = std::ldexp(float_from_bits(0x3f800000U | m), step + e);
        EXPECT_EQ(round_to_step(x, step), round_by_the_book(x, step)) << x << " step " << step;
        EXPECT_EQ(round_to_step(-x, step), round_by_the_book(-x, step));
      }
      for (int n = 1; n < 4096; ++n) {  // halves: the ties
        const float x = std::ldexp(static_cast<float>(n) + 0.5F, step);
        EXPECT_EQ(round_to_step(x, step), round_by_the_book(x, step)) << x << " step " << step;
      }
    }
  }
  EXPECT_EQ(round_to_step(0.0F, -77), 0.0F);
}

TEST(ExactMath, PowerOfTwo) {
  for (int e = -149; e <= 127; ++e) EXPECT_EQ(power_of_two(e), std::ldexp(1.0F, e));
  EXPECT_EQ(power_of_two(-150), 0.0F);
  EXPECT_TRUE(std::isinf(power_of_two(128)));
}

// One number over all functions: what another compiler or another optimisation level must give too
// (tools/exact_math_digest.cpp prints it; ./test compares builds).
TEST(ExactMath, DigestIsFrozen) { EXPECT_EQ(exact_math_digest(), kExactMathDigest); }

TEST(Leaves, LargestThatLeavesEightGroups) {
  EXPECT_EQ(leaf_count(1), 1);
  EXPECT_EQ(leaf_count(15), 1);
  EXPECT_EQ(leaf_count(16), 2);
  EXPECT_EQ(leaf_count(24), 2);
  EXPECT_EQ(leaf_count(32), 4);
  EXPECT_EQ(leaf_count(64), 8);
  EXPECT_EQ(leaf_count(96), 8);
  EXPECT_EQ(leaf_count(36), 4);
  EXPECT_EQ(leaf_count(208), 8);
  EXPECT_EQ(leaf_count(108), 4);
}

}  // namespace
}  // namespace tercet
