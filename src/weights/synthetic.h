// Checkpoints made in memory from a seed: random weights of the true shapes, for whoever measures or tests
// without a download. Integers and exact float operations only, so every machine makes the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/checkpoint.h"
#include "weights/tensor_source.h"

namespace tercet {

/// How the values of a tensor are drawn.
enum class SyntheticKind : uint8_t {
  quantized,  // u32 words of uniform q
  scales,     // of a quantised matrix
  biases,     // of a quantised matrix: each row group's range is centred on 0
  weights,    // bf16 floats, uniform, of the same spread as quantised ones
  norm,       // bf16, around 1
  bias,       // float32, small
  zero,       // float32 zeros: every score ties
};

struct SyntheticTensor {
  TensorInfo info;
  SyntheticKind kind;
  int bits = 0;      // scales, biases: of their matrix
  float spread = 0;  // scales, biases, weights, bias: standard deviation of the values
};

/// A source that makes each tensor when it is read: a function of (seed, name, element) alone. A read costs
/// the tensor's size in memory and runs on `threads` threads, one read at a time.
std::shared_ptr<const TensorSource> make_synthetic_source(std::vector<SyntheticTensor> tensors, uint64_t seed,
                                                          int threads);

}  // namespace tercet
