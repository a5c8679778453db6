// A product's weights as a checkpoint holds them, before a backend packs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tensor/dtype.h"

namespace tercet {

/// y[n] = Σ_k w[n, k]·x[k]. Either affine, w = scale·q + bias per group of `group` weights along k, or
/// floats.
struct MatrixData {
  int64_t n = 0;              // outputs
  int64_t k = 0;              // inputs; a multiple of `group`
  int bits = 0;               // affine: bits of q (2, 3, 4, 5, 6, 8). 0: floats
  int group = 64;             // affine: 32, 64 or 128. floats: 64 (docs/exactness.md, rule 2)
  DType dtype = DType::bf16;  // of the float values, or of scales and biases: bf16, f16 or f32
  const std::byte* values =
      nullptr;  // floats [n, k], or q as a little-endian stream of bits, [n, k·bits/8] bytes
  const std::byte* scales = nullptr;  // affine: [n, k/group]
  const std::byte* biases = nullptr;  // affine: [n, k/group]
  std::shared_ptr<const void> owner;  // keeps the pointers alive

  bool affine() const { return bits != 0; }
  int64_t value_row_bytes() const { return affine() ? k * bits / 8 : k * dtype_size(dtype); }
  int64_t scale_row_bytes() const { return affine() ? k / group * dtype_size(dtype) : 0; }

  /// Outputs [begin, begin + count).
  MatrixData rows(int64_t begin, int64_t count) const {
    MatrixData part = *this;
    part.n = count;
    part.values += begin * value_row_bytes();
    if (affine()) {
      part.scales += begin * scale_row_bytes();
      part.biases += begin * scale_row_bytes();
    }
    return part;
  }
};

}  // namespace tercet
