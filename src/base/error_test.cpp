#include "base/error.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace tercet {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return fail("{} is odd", x);
  return x / 2;
}

Result<int> quarter(int x) {
  TERCET_TRY(const int h, half(x));
  return half(h);
}

TEST(Error, TryBindsOrReturns) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
}

TEST(CheckDeathTest, NamesPlaceAndOperands) {
  EXPECT_DEATH(TERCET_CHECK_EQ(1 + 1, 3), "error_test.cpp:.*1 \\+ 1 == 3 \\(2 against 3\\)");
  EXPECT_DEATH(TERCET_CHECK(false), "check failed: false");
}

}  // namespace
}  // namespace tercet
