#include "backend/reference/rounding.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "ops/exact_math.h"
#include "ops/leaves.h"

namespace tercet::reference {
namespace {

float largest_magnitude(std::span<const float> x) {
  uint32_t largest = 0;  // as bits, so that NaN counts as larger than all
  for (const float value : x) largest = std::max(largest, float_bits(value) & 0x7fffffffU);
  return float_from_bits(largest);
}

}  // namespace

float lane_sum_of_squares(std::span<const float> x) {
  std::array<float, 256> lane{};
  for (size_t i = 0; i < x.size(); ++i) lane[i % 256] = fma_(x[i], x[i], lane[i % 256]);
  for (size_t step = 128; step >= 1; step /= 2) {
    for (size_t j = 0; j < step; ++j) lane[j] = lane[j] + lane[j + step];
  }
  return lane[0];
}

float norm_of(std::span<const float> x) {
  const int e = ceil_exponent(largest_magnitude(x));
  std::vector<float> scaled(x.begin(), x.end());
  for (float& value : scaled) value = value * power_of_two(-e);
  return power_of_two(e) * sqrt_(lane_sum_of_squares(scaled));
}

bool group_exponents(std::span<const float> x, int64_t group, int64_t leaves, RowForm form,
                     std::span<int> exponents) {
  const int64_t groups = static_cast<int64_t>(exponents.size());
  for (int64_t g = 0; g < groups; ++g) {
    const auto part = x.subspan(static_cast<size_t>(g * group), static_cast<size_t>(group));
    const float largest = largest_magnitude(part);
    if (exponent_fails(ceil_exponent(largest))) return false;
    // 1 + 2^-9 covers what the norm's own rounding and the rounding of the values can add.
    const float size = form == RowForm::affine ? largest : norm_of(part) * (1.0F + 0x1p-9F);
    exponents[static_cast<size_t>(g)] = ceil_exponent(size);
    if (exponent_fails(exponents[static_cast<size_t>(g)])) return false;
  }
  const int64_t per_leaf = groups / leaves;
  for (int64_t begin = 0; begin < groups; begin += per_leaf) {
    const auto leaf = exponents.subspan(static_cast<size_t>(begin), static_cast<size_t>(per_leaf));
    const int floor = *std::max_element(leaf.begin(), leaf.end()) - 16;
    for (int& e : leaf) e = std::max(e, floor);
  }
  return true;
}

RoundedRows make_rounded(int64_t rows, int64_t k, int64_t group) {
  TERCET_CHECK_EQ(k % group, 0);
  RoundedRows out{.rows = rows, .k = k, .group = group, .n = {}, .sum = {}, .unit = {}};
  out.n.resize(static_cast<size_t>(rows * k));
  out.sum.resize(static_cast<size_t>(rows * (k / group)));
  out.unit.resize(out.sum.size());
  return out;
}

bool round_row(std::span<const float> x, RowForm form, RoundedRows& out, int64_t r, std::span<float> rest) {
  const int64_t groups = out.groups();
  std::vector<int> exponents(static_cast<size_t>(groups));
  const bool finite = group_exponents(x, out.group, leaf_count(groups), form, exponents);
  const int bits_below = form == RowForm::affine ? 13 : 12;
  for (int64_t g = 0; g < groups; ++g) {
    const int step = finite ? exponents[static_cast<size_t>(g)] - bits_below : 0;
    const float per_unit = power_of_two(-step);
    int32_t sum = 0;
    for (int64_t i = g * out.group; i < (g + 1) * out.group; ++i) {
      const float value = finite ? x[static_cast<size_t>(i)] : 0.0F;
      const float rounded = round_to_step(value, step);
      const auto n = static_cast<int16_t>(rounded * per_unit);
      out.n[static_cast<size_t>(r * out.k + i)] = n;
      sum += n;
      if (!rest.empty()) rest[static_cast<size_t>(i)] = value - rounded;
    }
    out.sum[static_cast<size_t>(r * groups + g)] = sum;
    out.unit[static_cast<size_t>(r * groups + g)] = power_of_two(step);
  }
  return finite;
}

}  // namespace tercet::reference
