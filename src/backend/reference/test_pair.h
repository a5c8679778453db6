// A backend beside the reference, on the same data: every operation must leave the same bytes. The cases lie
// beside this header (backend_*_test.cpp); each backend's test program compiles them and says what to test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "backend/reference/hard_rows.h"
#include "backend/reference/reference_ops.h"
#include "base/error.h"
#include "base/philox.h"
#include "tensor/dtype.h"

namespace tercet::backend_test {

/// Whether a few sizes that take every kernel are enough: for tools that watch each access.
inline bool brief() { return std::getenv("TERCET_BRIEF") != nullptr; }

/// A random matrix as a checkpoint holds it. Some q are all largest, some scales and biases are extreme.
struct TestMatrix {
  std::vector<std::byte> values, scales, biases;
  MatrixData data;

  TestMatrix(int64_t n, int64_t k, int bits, int group, uint64_t key, DType dtype = DType::bf16) {
    data.n = n;
    data.k = k;
    data.bits = bits;
    data.group = group;
    data.dtype = dtype;
    if (bits == 0) {
      for (int64_t i = 0; i < n * k; ++i) {
        const float size = i / k % 5 == 4 ? 0x1p-9F : 1.0F;
        append(values, size * reference::uniform(key, static_cast<uint32_t>(i)));
      }
    } else {
      for (int64_t i = 0; i < n * k * bits / 8; ++i) {
        const auto random = philox4x32(key, {static_cast<uint32_t>(i), 1, 0, 0})[0];
        values.push_back(static_cast<std::byte>(i / data.value_row_bytes() % 7 == 3 ? 255 : random & 255U));
      }
      for (uint32_t i = 0; i < n * k / group; ++i) {
        const float size = i % 11 == 5 ? 1000.0F : 0.01F;
        append(scales, size * (1.5F + reference::uniform(key + 1, i)));
        append(biases, -7.0F * size * (1.5F + reference::uniform(key + 2, i)));
      }
    }
    data.values = values.data();
    data.scales = scales.data();
    data.biases = biases.data();
  }
  TestMatrix(const TestMatrix&) = delete;

 private:
  void append(std::vector<std::byte>& to, float value) const {
    const uint16_t half = data.dtype == DType::bf16 ? float_to_bf16(value) : float_to_f16(value);
    const auto* bytes = data.dtype == DType::f32 ? reinterpret_cast<const std::byte*>(&value)
                                                 : reinterpret_cast<const std::byte*>(&half);
    to.insert(to.end(), bytes, bytes + dtype_size(data.dtype));
  }
};

/// Rows in plain memory; NaN before anything is written.
struct TestRows {
  std::vector<float> values;
  int64_t cols;

  TestRows(int64_t rows, int64_t columns)
      : values(static_cast<size_t>(rows * columns), std::numeric_limits<float>::quiet_NaN()), cols(columns) {}

  Rows view() { return {values.data(), static_cast<int64_t>(values.size()) / cols, cols}; }
  Rows first(int64_t rows) { return {values.data(), rows, cols}; }
  bool operator==(const TestRows& other) const {
    return values.size() == other.values.size() &&
           std::memcmp(values.data(), other.values.data(), values.size() * sizeof(float)) == 0;
  }
  /// Whether the first `rows` rows are those of `other`, and nothing was written after them.
  bool starts(const TestRows& other, int64_t rows) const {
    const auto count = static_cast<size_t>(rows * cols);
    for (size_t i = count; i < values.size(); ++i) {
      if (values[i] == values[i]) return false;
    }
    return std::memcmp(values.data(), other.values.data(), count * sizeof(float)) == 0;
  }
};

/// The hard rows in turn, with random ones between them.
inline TestRows hard_rows(int64_t rows, int64_t cols, uint64_t key) {
  const auto hard = reference::hard_rows(static_cast<size_t>(cols));
  TestRows out(rows, cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; ++i) {
      const auto at = static_cast<uint32_t>(r * cols + i);
      out.values[at] = r % 2 == 0 ? hard[static_cast<size_t>(r / 2) % hard.size()][static_cast<size_t>(i)]
                                  : 3.0F * reference::uniform(key, at);
    }
  }
  return out;
}

inline std::vector<float> random_values(int64_t count, uint64_t key) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(reference::uniform(key, static_cast<uint32_t>(i)));
  return out;
}

inline Vector view(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

/// One sequence of `rows` rows at position 0.
inline Batch plain_batch(int64_t rows) {
  Batch batch;
  batch.tokens.assign(static_cast<size_t>(rows), 0);
  SequenceRows sequence{.first_row = 0, .rows = static_cast<int32_t>(rows), .position = 0, .pages = {}};
  sequence.pages.resize(static_cast<size_t>((rows + kPageTokens - 1) / kPageTokens));
  std::iota(sequence.pages.begin(), sequence.pages.end(), 0);
  batch.sequences.push_back(sequence);
  return batch;
}

/// A backend that reads and writes plain memory. An error: this machine lacks what it needs.
struct Backend {
  std::string name;
  std::function<Result<std::unique_ptr<Ops>>(int threads)> make;
};

inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

/// What the program at hand tests. Defined by each of them.
std::vector<Backend> backends_under_test();

/// A test for each of them.
class EveryBackend : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    const auto ops = GetParam().make(1);
    if (!ops) GTEST_SKIP() << ops.error().message;
  }

  std::unique_ptr<Ops> reference_ = make_reference_ops(2);

  std::unique_ptr<Ops> fast(int threads = 2) const { return std::move(*GetParam().make(threads)); }
};

inline std::string backend_name(const testing::TestParamInfo<Backend>& info) { return info.param.name; }

#define TERCET_EVERY_BACKEND(suite) \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(backends_under_test()), backend_name)

}  // namespace tercet::backend_test
