// From a checkpoint's bytes to Weights.
#pragma once

#include <span>

#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// Writes `n` outputs from the checkpoint's q (a stream of `bits` each), scales and biases into `to` from
/// output `first`, a multiple of 16.
struct PackParams {
  const uint8_t* values;
  const uint8_t* scales;
  const uint8_t* biases;
  int32_t* wild;  // set where a scale or a bias is neither 0 nor of a size from 2^-64 to 2^32
  Weights to;
  int64_t row_bytes;
  int32_t n, first, bits, dtype;  // dtype of scales and biases: 0 bf16, 1 f16, 2 f32
};
/// All of `list` in one launch; the device has it at `on_device`.
void pack_affine(Launcher& launcher, std::span<const PackParams> list, const PackParams* on_device);

/// Float values [n, k] of `dtype` to float32 rows, which round_rows then makes whole numbers of.
struct WidenParams {
  const uint8_t* values;
  float* out;
  int64_t count, dtype;
};
void widen(Launcher& launcher, const WidenParams& params);

/// The unit of each group of rounded rows to its exponent: F = log2(unit) + 12.
struct ExponentParams {
  const UnitSum* units;
  int8_t* exponents;
  int64_t count;
};
void exponents(Launcher& launcher, const ExponentParams& params);

}  // namespace tercet::cuda
