// How rows and float weights are rounded before they enter a product (docs/exactness.md, rules 0 to 2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tercet::reference {

/// Σ of squares in 256 lanes: element i goes to lane i mod 256, ascending, by fma; then lane j takes lane
/// j + 128, j + 64, …, j + 1 (rule 5).
float lane_sum_of_squares(std::span<const float> x);

/// ‖x‖ = 2^e·fl(√(lane sum of (x·2^-e)²)), 2^e = pow2(max|x|) (rule 0).
float norm_of(std::span<const float> x);

/// pow2 exponents of a group: by its largest value (affine weights meet it) or its norm (float weights).
enum class RowForm { affine, floats };

/// Rows as whole numbers: x' = n·unit, a group at a time.
struct RoundedRows {
  int64_t rows = 0;
  int64_t k = 0;
  int64_t group = 0;
  std::vector<int16_t> n;    // [rows, k]; |n| ≤ 2^13 (affine), ≤ 2^12 (floats)
  std::vector<int32_t> sum;  // [rows, k/group]: Σ n of the group
  std::vector<float> unit;   // [rows, k/group]: u, a power of two

  int64_t groups() const { return k / group; }
};

/// Rounds one row into row r of `out` (sized by the caller). `rest`, where not empty, receives x − x'
/// (rule 10). False, and a row of zeros, where x is not finite or an exponent is above 63.
bool round_row(std::span<const float> x, RowForm form, RoundedRows& out, int64_t r, std::span<float> rest);

RoundedRows make_rounded(int64_t rows, int64_t k, int64_t group);

/// The exponents E of a row's groups, each raised to its leaf's (or, with one leaf, the row's) largest
/// minus 16; false where one is above 63 or x is not finite.
bool group_exponents(std::span<const float> x, int64_t group, int64_t leaves, RowForm form,
                     std::span<int> exponents);

}  // namespace tercet::reference
