#include "backend/reference/product.h"

#include <algorithm>
#include <cstring>

#include "backend/reference/clones.h"
#include "base/check.h"
#include "ops/exact_math.h"
#include "ops/leaves.h"
#include "tensor/unpack.h"

namespace tercet::reference {
namespace {

constexpr int64_t kMaxGroup = 128;

float value_at(DType dtype, const std::byte* data, int64_t index) {
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return dtype == DType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

/// Σ q·n of one group: exact (rule 2), so its order is the compiler's to choose. Groups are multiples of 32.
TERCET_INLINE int32_t block_sum(const int16_t* a, const int16_t* b, int64_t count) {
  int32_t sum = 0;
  for (int64_t part = 0; part < count; part += 32) {
    for (int64_t i = part; i < part + 32; ++i) sum += int32_t{a[i]} * b[i];
  }
  return sum;
}

/// One group of one output's weights, ready to meet rows: the numbers in one or two planes and, for each
/// plane, the factor that its block sum carries beside the row's unit.
struct Group {
  int16_t high[kMaxGroup];  // q >> 4, used where q has more than 4 bits
  int16_t low[kMaxGroup];   // q & 15, or m
  float scale = 0.0F;       // s, or v = 2^(F−12)
  float bias = 0.0F;        // b
  bool two_planes = false;
};

TERCET_INLINE void load_group(const Matrix& w, int64_t row, int64_t g, Group& out) {
  const int64_t at = row * (w.k / w.group) + g;
  if (w.form() == RowForm::floats) {
    std::copy_n(w.m.data() + row * w.k + g * w.group, w.group, out.low);
    out.scale = power_of_two(w.f[static_cast<size_t>(at)] - 12);
    return;
  }
  uint8_t q[kMaxGroup] = {};
  const std::byte* packed = w.affine.values + row * w.affine.value_row_bytes();
  unpack_q(packed + g * w.group * w.affine.bits / 8, w.affine.bits, w.group, q);
  out.two_planes = w.affine.bits > 4;
  for (int64_t i = 0; i < kMaxGroup; ++i) out.low[i] = q[i] & 15;
  if (out.two_planes) {
    for (int64_t i = 0; i < kMaxGroup; ++i) out.high[i] = q[i] >> 4;
  }
  out.scale = value_at(w.affine.dtype, w.affine.scales, at);
  out.bias = value_at(w.affine.dtype, w.affine.biases, at);
}

/// One link of a leaf's chain (rule 2).
TERCET_INLINE float extend(float acc, const Group& w, RowForm form, const RoundedRows& x, int64_t r,
                           int64_t g) {
  const int16_t* n = x.n.data() + r * x.k + g * x.group;
  const auto at = static_cast<size_t>(r * x.groups() + g);
  const float u = x.unit[at];
  if (w.two_planes) {
    acc = fma_(w.scale * (16.0F * u), static_cast<float>(block_sum(w.high, n, x.group)), acc);
  }
  acc = fma_(w.scale * u, static_cast<float>(block_sum(w.low, n, x.group)), acc);
  if (form == RowForm::affine) acc = fma_(w.bias * u, static_cast<float>(x.sum[at]), acc);
  return acc;
}

}  // namespace

MatrixData owned_copy(const MatrixData& data) {
  const auto values = static_cast<size_t>(data.n * data.value_row_bytes());
  const auto scales = static_cast<size_t>(data.n * data.scale_row_bytes());
  const auto bytes = std::make_shared<std::vector<std::byte>>(values + 2 * scales);
  MatrixData copy = data;
  std::memcpy(bytes->data(), data.values, values);
  copy.values = bytes->data();
  if (data.affine()) {
    std::memcpy(bytes->data() + values, data.scales, scales);
    std::memcpy(bytes->data() + values + scales, data.biases, scales);
    copy.scales = bytes->data() + values;
    copy.biases = bytes->data() + values + scales;
  }
  copy.owner = bytes;
  return copy;
}

int64_t Matrix::bytes() const {
  if (form() == RowForm::floats) return static_cast<int64_t>(m.size() * sizeof(int16_t) + f.size());
  return n * (affine.value_row_bytes() + 2 * affine.scale_row_bytes());
}

Matrix pack(const MatrixData& data) {
  TERCET_CHECK_LE(data.group, kMaxGroup);
  TERCET_CHECK_EQ(data.k % data.group, 0);
  Matrix out;
  out.n = data.n;
  out.k = data.k;
  out.group = data.group;
  if (data.affine()) {
    out.affine = owned_copy(data);
    return out;
  }
  const int64_t groups = data.k / data.group;
  out.m.resize(static_cast<size_t>(data.n * data.k));
  out.f.resize(static_cast<size_t>(data.n * groups));
  std::vector<float> row(static_cast<size_t>(data.k));
  std::vector<int> exponents(static_cast<size_t>(groups));
  for (int64_t n = 0; n < data.n; ++n) {
    for (int64_t i = 0; i < data.k; ++i) {
      row[static_cast<size_t>(i)] = value_at(data.dtype, data.values, n * data.k + i);
    }
    // "F at least the row's largest minus 16": the whole row counts as one leaf.
    TERCET_CHECK(group_exponents(row, data.group, 1, RowForm::floats, exponents));
    for (int64_t i = 0; i < data.k; ++i) {
      const int step = exponents[static_cast<size_t>(i / data.group)] - 12;
      out.m[static_cast<size_t>(n * data.k + i)] =
          static_cast<int16_t>(round_to_step(row[static_cast<size_t>(i)], step) * power_of_two(-step));
    }
    for (int64_t g = 0; g < groups; ++g) {
      out.f[static_cast<size_t>(n * groups + g)] = static_cast<int8_t>(exponents[static_cast<size_t>(g)]);
    }
  }
  return out;
}

TERCET_CLONES
void product(const RoundedRows& x, const Matrix& w, int64_t begin, int64_t end, float* y, int64_t y_stride) {
  TERCET_CHECK_EQ(x.k, w.k);
  TERCET_CHECK_EQ(x.group, w.group);
  const int64_t groups = x.groups();
  const int64_t leaves = leaf_count(groups);
  const int64_t per_leaf = groups / leaves;
  const RowForm form = w.form();
  std::vector<float> acc(static_cast<size_t>(x.rows));
  Group group;
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      std::fill(acc.begin(), acc.end(), 0.0F);
      for (int64_t g = leaf * per_leaf; g < (leaf + 1) * per_leaf; ++g) {
        load_group(w, n, g, group);
        for (int64_t r = 0; r < x.rows; ++r) {
          float& a = acc[static_cast<size_t>(r)];
          a = extend(a, group, form, x, r, g);
        }
      }
      for (int64_t r = 0; r < x.rows; ++r) {
        float& out = y[r * y_stride + n];
        out = leaf == 0 ? acc[static_cast<size_t>(r)] : out + acc[static_cast<size_t>(r)];
      }
    }
  }
}

void table_row(const MatrixData& table, int64_t row, float* out) {
  if (!table.affine()) {
    for (int64_t i = 0; i < table.k; ++i) out[i] = value_at(table.dtype, table.values, row * table.k + i);
    return;
  }
  for (int64_t g = 0; g < table.k / table.group; ++g) {
    uint8_t q[kMaxGroup];
    const std::byte* packed = table.values + row * table.value_row_bytes();
    unpack_q(packed + g * table.group * table.bits / 8, table.bits, table.group, q);
    const int64_t at = row * (table.k / table.group) + g;
    const float scale = value_at(table.dtype, table.scales, at);
    const float bias = value_at(table.dtype, table.biases, at);
    for (int64_t i = 0; i < table.group; ++i) out[g * table.group + i] = fma_(scale, q[i], bias);
  }
}

}  // namespace tercet::reference
