// Tensors made from a seed: random weights of any shape, for whoever measures or tests without a download.
// Integers and exact or correctly rounded operations only, so every machine makes the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "weights/tensor_source.h"

namespace tercet {

/// How a tensor's values are drawn. `scale` is SyntheticTensor's.
enum class SyntheticKind : uint8_t {
  packed,    // U32: uniform bits, so uniform q of any width
  scales,    // BF16: of an affine matrix whose weights have the standard deviation `scale`; both signs
  biases,    // BF16: each puts its group's weights about 0
  weights,   // BF16: uniform, with the standard deviation `scale`
  norm,      // BF16: uniform in `scale`·[3/4, 5/4]
  offsets,   // F32: uniform in ±`scale`
  constant,  // F32: `scale`
};

struct SyntheticTensor {
  TensorInfo info;
  SyntheticKind kind;
  double scale;
  int bits = 0;  // of the matrix of scales and biases, which share their draws: NAME.scales, NAME.biases
};

/// A value is a function of (seed, name, place) alone. A read costs the tensor's size in memory and runs on
/// `threads` threads, one read at a time, at about 1 GB/s a thread.
std::shared_ptr<const TensorSource> make_synthetic_source(std::vector<SyntheticTensor> tensors, uint64_t seed,
                                                          int threads);

}  // namespace tercet
