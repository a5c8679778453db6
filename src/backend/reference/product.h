// Products of rounded rows with weights (docs/exactness.md, rules 1 to 3).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/reference/rounding.h"
#include "tensor/matrix_data.h"

namespace tercet::reference {

/// A copy of `data` that owns its bytes.
MatrixData owned_copy(const MatrixData& data);

/// One matrix [n, k] as the reference keeps it. Affine weights stay as they came; float weights become whole
/// numbers m with an exponent a group: w' = m·2^(F−12).
struct Matrix {
  MatrixData affine;       // where affine: the checkpoint's own bytes
  std::vector<int16_t> m;  // floats: [n, k], |m| ≤ 2^12
  std::vector<int8_t> f;   // floats: [n, k/group]: F
  int64_t n = 0;
  int64_t k = 0;
  int64_t group = 64;

  RowForm form() const { return m.empty() ? RowForm::affine : RowForm::floats; }
  int64_t bytes() const;
};

/// Scans nothing: non-finite weights are the loader's to refuse.
Matrix pack(const MatrixData& data);

/// y[r·y_stride + n] for outputs [begin, end) and all rows.
void product(const RoundedRows& x, const Matrix& w, int64_t begin, int64_t end, float* y, int64_t y_stride);

/// Row `row` of a table, never rounded: fma(s, q, b), or the float itself (rule 2).
void table_row(const MatrixData& table, int64_t row, float* out);

}  // namespace tercet::reference
