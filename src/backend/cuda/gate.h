// The products that the fast kernels must get right at start, beside the trials that all backends share.
#pragma once

#include <cstdint>

namespace tercet::cuda {

/// Rows, and outputs of weights [outputs, 128].
struct GateShape {
  int64_t rows, outputs;
};

/// For which product_many() takes 16, 32, 64, 128 and 16 rows at a time on 132 multiprocessors, and
/// product_mma() 64, but of the last 32.
constexpr GateShape kGateShapes[] = {{70, 192}, {520, 11520}, {64, 19200}, {1500, 11520}, {20, 192}};

/// Rows that enter a product with float weights, for which product_floats() takes 8, 16, 32 and kFloatRows.
constexpr int64_t kGateFloatRows[] = {8, 16, 32, 70};

/// Rows that choose two of kGateExperts experts each, and the experts' intermediate numbers. The first have a
/// few pairs each, which product_batch() is for; of the second product_many() takes 128, some experts having
/// 80, for which it takes 96: with those above every width of its instruction.
struct GateExperts {
  int32_t rows;
  int64_t inter;
};
constexpr int64_t kGateExperts = 8;
constexpr GateExperts kGateExpertShapes[] = {{40, 128}, {640, 2304}};

}  // namespace tercet::cuda
