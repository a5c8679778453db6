#include "backend/reference/product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "backend/reference/hard_rows.h"
#include "ops/exact_math.h"
#include "ops/leaves.h"
#include "tensor/unpack.h"

namespace tercet::reference {
namespace {

/// A matrix made for a test, with its numbers also kept apart.
struct Made {
  MatrixData data;
  std::vector<uint8_t> q;             // affine: [n, k]
  std::vector<float> scale, bias, w;  // [n, k/group]; w of floats [n, k]
  std::vector<std::byte> values, scales, biases;
};

void append(std::vector<std::byte>& to, uint16_t value) {
  to.push_back(static_cast<std::byte>(value & 255));
  to.push_back(static_cast<std::byte>(value >> 8));
}

Made make_affine(int64_t n, int64_t k, int bits, int group, bool extreme) {
  Made m;
  uint64_t window = 0;
  int held = 0;
  for (int64_t i = 0; i < n * k; ++i) {
    const uint32_t random = philox4x32(7, {static_cast<uint32_t>(i), static_cast<uint32_t>(bits), 0, 0})[0];
    const uint32_t largest = (1U << bits) - 1U;
    const auto q = static_cast<uint8_t>(extreme ? largest : random & largest);
    m.q.push_back(q);
    window |= uint64_t{q} << held;
    for (held += bits; held >= 8; held -= 8, window >>= 8)
      m.values.push_back(static_cast<std::byte>(window & 255));
  }
  for (int64_t i = 0; i < n * k / group; ++i) {
    const uint16_t s = float_to_bf16(0.01F * (1.5F + uniform(8, static_cast<uint32_t>(i))));
    const uint16_t b = float_to_bf16(-0.07F * (1.5F + uniform(9, static_cast<uint32_t>(i))));
    append(m.scales, s);
    append(m.biases, b);
    m.scale.push_back(bf16_to_float(s));
    m.bias.push_back(bf16_to_float(b));
  }
  m.data = {.n = n,
            .k = k,
            .bits = bits,
            .group = group,
            .dtype = DType::bf16,
            .values = m.values.data(),
            .scales = m.scales.data(),
            .biases = m.biases.data(),
            .owner = nullptr};
  return m;
}

Made make_floats(int64_t n, const std::vector<std::vector<float>>& rows) {
  Made m;
  const auto k = static_cast<int64_t>(rows.front().size());
  for (int64_t i = 0; i < n; ++i) {
    for (const float value : rows[static_cast<size_t>(i) % rows.size()]) {
      const uint16_t bits = float_to_bf16(value);
      append(m.values, bits);
      m.w.push_back(bf16_to_float(bits));
    }
  }
  m.data = {.n = n,
            .k = k,
            .bits = 0,
            .group = 64,
            .dtype = DType::bf16,
            .values = m.values.data(),
            .scales = nullptr,
            .biases = nullptr,
            .owner = nullptr};
  return m;
}

TEST(Unpack, IsALittleEndianStreamOfBits) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    const Made m = make_affine(2, 128, bits, 64, false);
    std::vector<uint8_t> q(m.q.size());
    unpack_q(m.values.data(), bits, static_cast<int64_t>(q.size()), q.data());
    EXPECT_EQ(q, m.q) << bits;
    uint8_t part[64];
    unpack_q(m.values.data() + 64 * bits / 8, bits, 64, part);
    EXPECT_TRUE(std::equal(part, part + 64, m.q.begin() + 64)) << bits;
  }
}

/// Rules 1 to 3 again, with 64-bit integer sums and nothing shared but the rounding of the rows.
float by_the_book(const RoundedRows& x, int64_t r, const Made& m, int64_t out) {
  const int64_t groups = x.groups();
  const int64_t leaves = leaf_count(groups);
  float result = 0.0F;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    float acc = 0.0F;
    for (int64_t g = leaf * groups / leaves; g < (leaf + 1) * groups / leaves; ++g) {
      int64_t d1 = 0, d0 = 0, s = 0;
      for (int64_t i = g * x.group; i < (g + 1) * x.group; ++i) {
        const int64_t n = x.n[static_cast<size_t>(r * x.k + i)];
        const int q = m.q[static_cast<size_t>(out * x.k + i)];
        d1 += (q >> 4) * n;
        d0 += (m.data.bits > 4 ? q & 15 : q) * n;
        s += n;
      }
      EXPECT_LT(std::abs(d1), 1 << 24);
      EXPECT_LT(std::abs(d0), 1 << 24);
      const float u = x.unit[static_cast<size_t>(r * groups + g)];
      const float scale = m.scale[static_cast<size_t>(out * groups + g)];
      const float bias = m.bias[static_cast<size_t>(out * groups + g)];
      if (m.data.bits > 4) acc = std::fmaf(scale * 16 * u, static_cast<float>(d1), acc);
      acc = std::fmaf(scale * u, static_cast<float>(d0), acc);
      acc = std::fmaf(bias * u, static_cast<float>(s), acc);
    }
    result = leaf == 0 ? acc : result + acc;
  }
  return result;
}

TEST(Product, AffineEqualsIntegerSums) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      for (const int64_t groups : {1, 3, 16, 36, 64}) {
        for (const bool extreme : {false, true}) {
          const int64_t k = groups * group;
          const Made m = make_affine(3, k, bits, group, extreme);
          const Matrix w = pack(m.data);
          const auto rows = hard_rows(static_cast<size_t>(k));
          RoundedRows x = make_rounded(static_cast<int64_t>(rows.size()), k, group);
          for (size_t r = 0; r < rows.size(); ++r) {
            ASSERT_TRUE(round_row(rows[r], RowForm::affine, x, static_cast<int64_t>(r), {}));
          }
          std::vector<float> y(rows.size() * 3);
          product(x, w, 0, 3, y.data(), 3);
          for (size_t r = 0; r < rows.size(); ++r) {
            for (int64_t n = 0; n < 3; ++n) {
              EXPECT_EQ(y[r * 3 + static_cast<size_t>(n)], by_the_book(x, static_cast<int64_t>(r), m, n));
            }
          }
        }
      }
    }
  }
}

// A row entering a product errs by at most half a unit of 2^(E−13) or 2^-11 of itself, and the weights not
// at all: so the result differs from the exact dot product by at most Σ|w|·that, plus float32's roundings.
TEST(Product, IsNearTheExactDotProduct) {
  const int64_t k = 1024;
  const Made m = make_affine(4, k, 4, 64, false);
  const Matrix w = pack(m.data);
  for (const std::vector<float>& row : hard_rows(static_cast<size_t>(k))) {
    RoundedRows x = make_rounded(1, k, 64);
    ASSERT_TRUE(round_row(row, RowForm::affine, x, 0, {}));
    std::vector<float> y(4);
    product(x, w, 0, 4, y.data(), 4);
    for (size_t n = 0; n < 4; ++n) {
      double exact = 0, bound = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        const size_t g = n * 16 + i / 64;
        const double weight = static_cast<double>(m.scale[g]) * m.q[n * row.size() + i] + m.bias[g];
        exact += weight * row[i];
        bound += std::abs(weight) * std::max(x.unit[i / 64] / 2.0, std::abs(row[i]) * 0x1p-11);
        // 32 fmas and a sum of leaves, each within 2^-24 of the partial sums of |s·q·x| and |b·x|
        bound += 33 * 0x1p-24 * (m.scale[g] * 15.0 + std::abs(m.bias[g])) * std::abs(row[i]);
      }
      EXPECT_LE(std::abs(y[n] - exact), bound);
    }
  }
}

TEST(Product, FloatBlocksAreExactForEveryPair) {
  for (const int64_t groups : {1, 16, 40}) {
    const auto rows = hard_rows(static_cast<size_t>(groups * 64));
    std::vector<std::vector<float>> usable(rows.begin(), rows.end());
    const auto count = static_cast<int64_t>(usable.size());
    const Made m = make_floats(count, usable);
    const Matrix w = pack(m.data);
    RoundedRows x = make_rounded(count, groups * 64, 64);
    for (int64_t r = 0; r < count; ++r) {
      ASSERT_TRUE(round_row(usable[static_cast<size_t>(r)], RowForm::floats, x, r, {}));
    }
    std::vector<float> y(static_cast<size_t>(count * count));
    product(x, w, 0, count, y.data(), count);
    const int64_t leaves = leaf_count(groups);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t n = 0; n < count; ++n) {
        float result = 0.0F;
        for (int64_t leaf = 0; leaf < leaves; ++leaf) {
          float acc = 0.0F;
          for (int64_t g = leaf * groups / leaves; g < (leaf + 1) * groups / leaves; ++g) {
            int64_t d = 0;
            int64_t size = 0;  // Σ|n·m|: every order of partial sums stays below it
            for (int64_t i = g * 64; i < (g + 1) * 64; ++i) {
              const int64_t term =
                  int64_t{x.n[static_cast<size_t>(r * x.k + i)]} * w.m[static_cast<size_t>(n * x.k + i)];
              d += term;
              size += std::abs(term);
            }
            ASSERT_LE(size, 1 << 24);
            const float unit = x.unit[static_cast<size_t>(r * groups + g)] *
                               std::ldexp(1.0F, w.f[static_cast<size_t>(n * groups + g)] - 12);
            acc = std::fmaf(unit, static_cast<float>(d), acc);
          }
          result = leaf == 0 ? acc : result + acc;
        }
        EXPECT_EQ(y[static_cast<size_t>(r * count + n)], result);
      }
    }
  }
}

TEST(Product, ARowAloneOrAmongOthersIsTheSame) {
  const Made m = make_affine(5, 512, 4, 64, false);
  const Matrix w = pack(m.data);
  const auto rows = hard_rows(512);
  RoundedRows all = make_rounded(static_cast<int64_t>(rows.size()), 512, 64);
  for (size_t r = 0; r < rows.size(); ++r)
    ASSERT_TRUE(round_row(rows[r], RowForm::affine, all, static_cast<int64_t>(r), {}));
  std::vector<float> together(rows.size() * 5);
  product(all, w, 0, 2, together.data(), 5);
  product(all, w, 2, 5, together.data(), 5);
  for (size_t r = 0; r < rows.size(); ++r) {
    RoundedRows one = make_rounded(1, 512, 64);
    ASSERT_TRUE(round_row(rows[r], RowForm::affine, one, 0, {}));
    std::vector<float> alone(5);
    product(one, w, 0, 5, alone.data(), 5);
    EXPECT_EQ(std::memcmp(alone.data(), together.data() + r * 5, 20), 0);
  }
}

TEST(TableRow, IsTheValueItself) {
  const Made affine = make_affine(3, 128, 4, 64, false);
  std::vector<float> row(128);
  table_row(affine.data, 2, row.data());
  for (size_t i = 0; i < 128; ++i) {
    const size_t g = 4 + i / 64;
    EXPECT_EQ(row[i], std::fmaf(affine.scale[g], affine.q[256 + i], affine.bias[g]));
  }
  const Made floats = make_floats(2, hard_rows(64));
  table_row(floats.data, 1, row.data());
  EXPECT_TRUE(std::equal(floats.w.begin() + 64, floats.w.end(), row.begin()));
}

}  // namespace
}  // namespace tercet::reference
