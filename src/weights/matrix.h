// From a checkpoint's tensors to the matrices and vectors of a model: shapes, bits and values are checked
// here, once, so that nothing after it meets a wrong size, a NaN or an infinity.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "tensor/matrix_data.h"
#include "weights/quantization.h"
#include "weights/tensor_source.h"

namespace tercet {

/// The matrix [n, k] under the base name `name`: `name.weight` with `name.scales` and `name.biases` (affine),
/// or floats in `name.weight` or `name`. A view of the source's bytes, which it keeps alive. Every scale,
/// bias and float weight is read once (on all of the pool's threads) and must be finite.
/// Errors name the tensor, what was expected and what was found.
Result<MatrixData> load_matrix(const TensorSource& source, const std::string& name, int64_t n, int64_t k,
                               const Quantization& quantization, ThreadPool& pool);

/// `count` matrices [n, k] (experts): one base name for each, or one name for a stack [count, n, k].
Result<std::vector<MatrixData>> load_matrices(const TensorSource& source, std::span<const std::string> names,
                                              int64_t count, int64_t n, int64_t k,
                                              const Quantization& quantization, ThreadPool& pool);

/// The vector [n] in the tensor `name` (bf16, f16 or f32), as float32; every value must be finite.
Result<std::vector<float>> load_vector(const TensorSource& source, const std::string& name, int64_t n);

}  // namespace tercet
