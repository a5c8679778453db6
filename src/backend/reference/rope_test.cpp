#include "backend/reference/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tercet::reference {
namespace {

constexpr double kTheta = 11158840.0;

TEST(Rope, PositionZeroChangesNothing) {
  std::vector<float> head(128);
  for (size_t i = 0; i < head.size(); ++i) head[i] = static_cast<float>(i) - 60.5F;
  std::vector<float> turned = head;
  rope(turned, rope_angles(rope_frequencies(kTheta), 0));
  EXPECT_EQ(turned, head);
}

TEST(Rope, TurnsPairsByPositionTimesFrequency) {
  for (const int32_t position : {1, 2, 4097, 100000, 262143}) {
    std::vector<float> head(128, 0.0F);
    for (size_t i = 0; i < 64; ++i) head[i] = 1.0F;  // (1, 0) becomes (cos, sin)
    rope(head, rope_angles(rope_frequencies(kTheta), position));
    for (int i = 0; i < 64; ++i) {
      const auto frequency = static_cast<float>(std::pow(kTheta, -i / 64.0));
      const double angle = static_cast<float>(position) * frequency;
      EXPECT_NEAR(head[static_cast<size_t>(i)], std::cos(angle), 0x1p-24) << position << " " << i;
      EXPECT_NEAR(head[static_cast<size_t>(i) + 64], std::sin(angle), 0x1p-24);
    }
  }
}

TEST(Rope, RoundsAsWritten) {
  std::vector<float> head(128, 0.0F);
  head[0] = 0.3F;
  head[64] = 0.7F;
  const auto angles = rope_angles(rope_frequencies(kTheta), 1);
  EXPECT_EQ(angles[0].sin, static_cast<float>(std::sin(1.0)));
  EXPECT_EQ(angles[0].cos, static_cast<float>(std::cos(1.0)));
  rope(head, angles);
  EXPECT_EQ(head[0], std::fmaf(-0.7F, angles[0].sin, 0.3F * angles[0].cos));
  EXPECT_EQ(head[64], std::fmaf(0.3F, angles[0].sin, 0.7F * angles[0].cos));
}

}  // namespace
}  // namespace tercet::reference
