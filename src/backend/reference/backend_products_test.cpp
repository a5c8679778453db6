#include "backend/reference/test_pair.h"

namespace tercet::backend_test {
namespace {

using ProductsTest = EveryBackend;
TERCET_EVERY_BACKEND(ProductsTest);

/// One below, at and above every number of rows at which a kernel changes or a step ends.
constexpr int64_t kRowCounts[] = {1,  2,  3,  4,  5,   6,   7,   8,   9,   15,  16,  17, 31,
                                  33, 63, 64, 65, 127, 129, 255, 256, 257, 511, 512, 513};

TEST_P(ProductsTest, AnyNumberOfRowsGivesTheReferencesBits) {
  constexpr int64_t kK = 128;
  const TestMatrix a(37, kK, 4, 64, 1), b(20, kK, 8, 64, 5), c(16, kK, 8, 32, 2), d(1, kK, 0, 64, 3);
  const MatrixData parts[] = {a.data, b.data, c.data, d.data};
  TestRows h = hard_rows(513, kK, 4);
  TestRows expected(513, 74);
  const auto plain = reference_->pack_linear(parts);
  const auto plain_step = reference_->begin(plain_batch(513));
  reference_->linear(*plain_step, h.view(), *plain, expected.view());
  const auto ops = fast();
  const auto packed = ops->pack_linear(parts);
  EXPECT_EQ(packed->n, 74);
  EXPECT_EQ(packed->k, kK);
  for (const int64_t rows : kRowCounts) {
    if (brief() && (rows % 8 != 1 || rows > 129)) continue;
    const auto step = ops->begin(plain_batch(rows));
    TestRows y(514, 74);
    ops->linear(*step, h.first(rows), *packed, y.first(rows));
    EXPECT_TRUE(y.starts(expected, rows)) << rows;
    EXPECT_EQ(ops->failed(*step), std::vector<uint8_t>(static_cast<size_t>(rows), 0));
  }
}

TEST_P(ProductsTest, EveryFormOfWeightsGivesTheReferencesBits) {
  const auto ops = fast();
  for (const int bits : {0, 2, 3, 4, 5, 6, 8}) {
    for (const int group : bits == 0 ? std::vector{64} : std::vector{32, 64, 128}) {
      for (const int64_t groups : {1, 3, 15, 16, 36, 64}) {
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
          if (dtype != DType::bf16 && groups != 3 && groups != 16) continue;
          if (brief() && (dtype != DType::bf16 || groups != 16)) continue;
          const int64_t k = groups * group;
          const TestMatrix w(19, k, bits, group, 10 + static_cast<uint64_t>(bits), dtype);
          TestRows h = hard_rows(26, k, 5);
          TestRows expected(26, 19), y(26, 19);
          const auto plain_step = reference_->begin(plain_batch(26));
          const auto step = ops->begin(plain_batch(26));
          reference_->linear(*plain_step, h.view(), *reference_->pack_linear({&w.data, 1}), expected.view());
          ops->linear(*step, h.view(), *ops->pack_linear({&w.data, 1}), y.view());
          EXPECT_TRUE(y == expected) << bits << " bits, groups " << groups << " of " << group;
        }
      }
    }
  }
}

TEST_P(ProductsTest, TheNumberOfThreadsChangesNothing) {
  const TestMatrix w(1000, 512, 4, 64, 20);
  TestRows h = hard_rows(9, 512, 6);
  TestRows expected(9, 1000);
  const auto plain_step = reference_->begin(plain_batch(9));
  reference_->linear(*plain_step, h.view(), *reference_->pack_linear({&w.data, 1}), expected.view());
  for (int threads = 1; threads <= 4; ++threads) {
    const auto ops = fast(threads);
    const auto packed = ops->pack_linear({&w.data, 1});
    for (const int64_t rows : {1, 9}) {
      for (int again = 0; again < (brief() ? 1 : 20); ++again) {
        const auto step = ops->begin(plain_batch(rows));
        TestRows y(9, 1000);
        ops->linear(*step, h.first(rows), *packed, y.first(rows));
        ASSERT_TRUE(y.starts(expected, rows)) << threads << " threads, " << rows << " rows";
      }
    }
  }
}

TEST_P(ProductsTest, OnlyTheRowsThatAreWanted) {
  const TestMatrix w(24, 256, 4, 64, 21);
  TestRows h = hard_rows(12, 256, 7);
  const std::vector<int32_t> ids = {11, 0, 0, 5};
  TestRows expected(4, 24), y(4, 24);
  const auto ops = fast();
  const auto plain_step = reference_->begin(plain_batch(12));
  const auto step = ops->begin(plain_batch(12));
  reference_->linear_of(*plain_step, h.view(), ids, *reference_->pack_linear({&w.data, 1}), expected.view());
  const auto packed = ops->pack_linear({&w.data, 1});
  ops->linear_of(*step, h.view(), ids, *packed, y.view());
  EXPECT_TRUE(y == expected);
  ops->linear_of(*step, h.view(), {}, *packed, y.first(0));
  EXPECT_TRUE(y == expected);
}

TEST_P(ProductsTest, GateAndUpAlikeOrOfDifferentForms) {
  const auto ops = fast();
  for (const int64_t inter : {16, 40, 7}) {
    if (brief() && inter == 7) continue;
    const TestMatrix gate(inter, 384, 4, 64, 22), up(inter, 384, 4, 64, 23), coarse(inter, 384, 8, 128, 24),
        floats(inter, 384, 0, 64, 25), whole(2 * inter, 384, 4, 32, 26);
    for (const std::vector<MatrixData>& parts :
         {std::vector{gate.data, up.data}, {gate.data, coarse.data}, {floats.data, up.data}, {whole.data}}) {
      for (const int64_t rows : {1, 8, 29}) {
        TestRows h = hard_rows(rows, 384, 8);
        TestRows expected(rows, inter), a(rows, inter);
        const auto plain_step = reference_->begin(plain_batch(rows));
        const auto step = ops->begin(plain_batch(rows));
        reference_->gate_up(*plain_step, h.view(), *reference_->pack_linear(parts), expected.view());
        ops->gate_up(*step, h.view(), *ops->pack_linear(parts), a.view());
        EXPECT_TRUE(a == expected) << inter << " columns, " << rows << " rows, " << parts.size() << " parts";
      }
    }
  }
}

/// Kernels that round rows alike follow upon others.
TEST_P(ProductsTest, PartsOfUnlikeFormsInTurn) {
  const auto ops = fast();
  const TestMatrix four(24, 384, 4, 64, 32), coarse(20, 384, 8, 128, 33), more(16, 384, 4, 128, 34);
  const TestMatrix floats(28, 384, 0, 64, 35), others(12, 384, 0, 64, 36);
  for (const std::vector<MatrixData>& parts : {std::vector{floats.data, coarse.data, others.data, four.data},
                                               {coarse.data, floats.data, more.data, others.data}}) {
    const auto expected_linear = reference_->pack_linear(parts);
    const auto linear = ops->pack_linear(parts);
    for (const int64_t rows : {1, 9, 40}) {
      TestRows h = hard_rows(rows, 384, 8);
      TestRows expected(rows, linear->n), y(rows, linear->n);
      const auto plain_step = reference_->begin(plain_batch(rows));
      const auto step = ops->begin(plain_batch(rows));
      reference_->linear(*plain_step, h.view(), *expected_linear, expected.view());
      ops->linear(*step, h.view(), *linear, y.view());
      EXPECT_TRUE(y == expected) << rows << " rows";
    }
  }
}

/// The most leaves that there are, in the largest blocks that a kernel may have.
TEST_P(ProductsTest, GateAndUpOfEightLeaves) {
  const auto ops = fast();
  for (const int bits : {4, 8, 0}) {
    const TestMatrix gate(32, 4096, bits, 64, 30), up(32, 4096, bits, 64, 31);
    const MatrixData parts[] = {gate.data, up.data};
    for (const int64_t rows : {1, 5, 17}) {
      TestRows h = hard_rows(rows, 4096, 8);
      TestRows expected(rows, 32), a(rows, 32);
      const auto plain_step = reference_->begin(plain_batch(rows));
      const auto step = ops->begin(plain_batch(rows));
      reference_->gate_up(*plain_step, h.view(), *reference_->pack_linear(parts), expected.view());
      ops->gate_up(*step, h.view(), *ops->pack_linear(parts), a.view());
      EXPECT_TRUE(a == expected) << bits << " bits, " << rows << " rows";
    }
  }
}

/// What is not finite, or too large, fails its own row alone: affine weights by its largest value, floats by
/// its norm.
TEST_P(ProductsTest, FailedRowsTouchNoOther) {
  const TestMatrix affine(20, 128, 4, 64, 27), floats(20, 128, 0, 64, 28);
  const auto ops = fast();
  for (const TestMatrix* w : {&affine, &floats}) {
    TestRows h = hard_rows(8, 128, 9);
    h.values[1 * 128 + 5] = std::numeric_limits<float>::quiet_NaN();
    h.values[3 * 128 + 127] = -std::numeric_limits<float>::infinity();
    h.values[4 * 128 + 64] = 0x1.000002p63F;
    for (size_t i = 0; i < 64; ++i) h.values[6 * 128 + i] = 0x1p61F;  // a norm of 2^64
    h.values[7 * 128] = 0x1p63F;
    TestRows expected(8, 20), y(8, 20);
    const auto plain_step = reference_->begin(plain_batch(8));
    const auto step = ops->begin(plain_batch(8));
    reference_->linear(*plain_step, h.view(), *reference_->pack_linear({&w->data, 1}), expected.view());
    ops->linear(*step, h.view(), *ops->pack_linear({&w->data, 1}), y.view());
    EXPECT_TRUE(y == expected);
    EXPECT_EQ(ops->failed(*step), reference_->failed(*plain_step));
    const bool by_norm = w == &floats;
    EXPECT_EQ(ops->failed(*step), (std::vector<uint8_t>{0, 1, 0, 1, 1, 0, by_norm, by_norm}));
  }
}

}  // namespace
}  // namespace tercet::backend_test
