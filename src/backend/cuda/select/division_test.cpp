// How many rows products of many rows take at a time; needs no GPU.
#include "backend/cuda/select/division.h"

#include <gtest/gtest.h>

#include <vector>

#include "backend/cuda/gate.h"

namespace tercet::cuda {
namespace {

constexpr int kProcessors = 132;

Weights weights(int32_t n, int32_t k, int32_t planes) {
  Weights out;
  out.n = n;
  out.k = k;
  out.group = kBlock;
  out.planes = planes;
  return out;
}

TEST(RowsTogether, TheGateMeetsEveryWidthForAllRows) {
  std::vector<int> found;
  for (const GateShape shape : kGateShapes) {
    const Weights w = weights(static_cast<int32_t>(shape.outputs), 128, 1);
    found.push_back(rows_together(w, false, shape.rows, 1, kProcessors));
  }
  EXPECT_EQ(found, (std::vector<int>{16, 32, 64, 128}));
}

TEST(RowsTogether, TheGateMeetsPiecesOfExpertsOfEveryWidth) {
  const GateExperts shape = kGateExpertShapes[1];
  const Weights up = weights(static_cast<int32_t>(2 * shape.inter), 128, 1);
  EXPECT_EQ(rows_together(up, true, shape.rows * 2 / kGateExperts, kGateExperts, kProcessors), 128);
}

TEST(RowsTogether, FewRowsOfManyExpertsTakeTheNarrowest) {
  const Weights up = weights(1536, 2048, 1);
  EXPECT_EQ(rows_together(up, true, 4, 128, kProcessors), 16);
  EXPECT_EQ(rows_together(up, true, 256, 128, kProcessors), 128);
}

TEST(RowsTogether, TwoPlanesLeaveRegistersForThirtyTwoRows) {
  EXPECT_LE(rows_together(weights(128, 2048, 2), false, 8192, 1, kProcessors), 32);
}

TEST(RowsTogether, LittleWorkIsDividedByLeaves) {
  Weights o = weights(2048, 4096, 1);
  o.leaves = 8;
  EXPECT_EQ(leaf_floats(o, 64, 16, false, kProcessors), 64 * 2048);
  EXPECT_EQ(leaf_floats(o, 4096, 128, false, kProcessors), 0);
  o.leaves = 1;
  EXPECT_EQ(leaf_floats(o, 64, 16, false, kProcessors), 0);
}

}  // namespace
}  // namespace tercet::cuda
