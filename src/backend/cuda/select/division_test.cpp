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
  std::vector<int> found, by_mma;
  for (const GateShape shape : kGateShapes) {
    const Weights w = weights(static_cast<int32_t>(shape.outputs), 128, 1);
    found.push_back(rows_together(w, false, shape.rows, 1, kProcessors));
    by_mma.push_back(mma_rows_together(w, shape.rows));
  }
  EXPECT_EQ(found, (std::vector<int>{16, 32, 64, 128, 16}));
  EXPECT_EQ(by_mma, (std::vector<int>{64, 64, 64, 64, 32}));
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
  EXPECT_EQ(mma_rows_together(weights(128, 2048, 2), 8192), kMmaFewRows);
}

TEST(RowsTogether, LittleWorkIsDividedByLeaves) {
  Weights o = weights(2048, 4096, 1);
  o.leaves = 8;
  EXPECT_EQ(leaf_floats(o, 64, 16, many_parts(o, 0), kProcessors), 64 * 2048);
  EXPECT_EQ(leaf_floats(o, 4096, 128, many_parts(o, 0), kProcessors), 0);
  EXPECT_EQ(leaf_floats(o, 512, 64, mma_parts(o, 0), kProcessors), 512 * 2048);  // 8 · 8 pieces
  EXPECT_EQ(leaf_floats(o, 513, 64, mma_parts(o, 0), kProcessors), 0);
  o.leaves = 1;
  EXPECT_EQ(leaf_floats(o, 64, 16, many_parts(o, 0), kProcessors), 0);
}

TEST(MmaParts, AreOfSixteenTilesOrOfEightOfGateAndAsManyOfUp) {
  EXPECT_EQ(mma_parts(weights(2048, 64, 1), 0), 8);
  EXPECT_EQ(mma_parts(weights(2049, 64, 1), 0), 9);
  EXPECT_EQ(mma_parts(weights(2 * 768, 64, 1), 1), 6);
  EXPECT_EQ(mma_parts(weights(2 * 784, 64, 1), 1), 7);
}

TEST(TakesLeaves, WhereRowsAndOutputsAreFew) {
  constexpr DeviceTraits kH200{.major = 9, .minor = 0, .processors = 132, .shared_bytes = 227 << 10};
  const auto takes = [&](int32_t n, int32_t planes, int32_t leaves, int64_t rows, bool plain = false) {
    Weights w = weights(n, 2048, planes);
    w.leaves = leaves;
    DeviceTraits device = kH200;
    device.plain = plain;
    return takes_leaves(device, w, rows);
  };
  EXPECT_TRUE(takes(5120, 1, 4, 48));
  EXPECT_FALSE(takes(5120, 1, 4, 49));
  EXPECT_TRUE(takes(2048, 1, 8, 64));
  EXPECT_FALSE(takes(2048, 1, 8, 65));
  EXPECT_FALSE(takes(2048, 2, 8, 8));
  EXPECT_FALSE(takes(2048, 1, 1, 8));
  EXPECT_FALSE(takes(2048, 1, 8, 8, true));
  EXPECT_TRUE(takes(16 * 2 * 16 * 33, 1, 4, 16));  // a warp for two tiles and a leaf: 16 of a multiprocessor
  EXPECT_FALSE(takes(16 * 2 * 16 * 33 + 32, 1, 4, 16));
  Weights longer = weights(2048, 1 << 17, 1);  // 32 KB of a row in a leaf
  longer.leaves = 8;
  EXPECT_FALSE(takes_leaves(kH200, longer, 8));
}

TEST(FloatRowsTogether, AreFewWhileOnePassServesThem) {
  const std::pair<int64_t, int> cases[] = {{1, 8}, {8, 8}, {9, 16}, {16, 16}, {17, 32}, {32, 32}, {33, 64}};
  for (const auto& [rows, together] : cases) EXPECT_EQ(float_rows_together(rows), together);
  for (size_t i = 0; i < std::size(kGateFloatRows); ++i) {
    EXPECT_EQ(float_rows_together(kGateFloatRows[i]), 8 << i);  // the gate has each
  }
}

}  // namespace
}  // namespace tercet::cuda
