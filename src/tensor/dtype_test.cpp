#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tercet {
namespace {

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i < 15; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_GE(dtype_size(dtype), 1);
  }
  EXPECT_FALSE(dtype_from_name("F4").has_value());
}

TEST(DType, EveryHalfRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
    } else {
      EXPECT_EQ(float_to_f16(value), bits);
    }
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  EXPECT_EQ(float_to_f16(1.0F + 0x1p-11F), 0x3c00);  // half-way: even below
  EXPECT_EQ(float_to_f16(1.0F + 0x3p-11F), 0x3c02);  // half-way: even above
  EXPECT_EQ(float_to_f16(65519.0F), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_f16(0x1p-25F), 0);  // half the least subnormal: even is zero
  EXPECT_EQ(float_to_f16(0x1.8p-24F), 2);
  EXPECT_EQ(float_to_f16(0x1.ffep-15F + 0x1p-26F), 0x0400);  // rounds up into the normals
}

TEST(DType, BrainFloatRoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0F + 0x3p-8F), 0x3f82);
  EXPECT_EQ(float_to_bf16(INFINITY), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(NAN))));
  EXPECT_EQ(bf16_to_float(0xc040), -3.0F);
}

}  // namespace
}  // namespace tercet
