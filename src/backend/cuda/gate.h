// The products that the fast kernels must get right at start, beside the trials that all backends share.
#pragma once

#include <cstdint>

namespace tercet::cuda {

/// Rows, and outputs of weights [outputs, 128].
struct GateShape {
  int64_t rows, outputs;
};

/// For which product_many() takes 16, 32, 64 and 128 rows at a time on 132 multiprocessors: every width of
/// its instruction.
constexpr GateShape kGateShapes[] = {{70, 192}, {520, 11520}, {64, 19200}, {1500, 11520}};

}  // namespace tercet::cuda
