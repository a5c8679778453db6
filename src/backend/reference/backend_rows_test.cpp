// Operations between products: embeddings, norms, the MTP layer's input.
#include "backend/reference/test_pair.h"

namespace tercet::backend_test {
namespace {

using RowsTest = EveryBackend;
TERCET_EVERY_BACKEND(RowsTest);

TEST_P(RowsTest, NormsOfEveryWidth) {
  const auto ops = fast();
  for (const int64_t cols : {1, 15, 16, 17, 128, 255, 256, 257, 320, 511, 512, 513, 2048, 4096}) {
    if (brief() && cols > 16 && cols % 256 != 1 && cols != 2048) continue;
    for (const int64_t rows : {1, 40}) {
      TestRows x = hard_rows(rows, cols, 1);
      TestRows z = hard_rows(rows, cols, 2);
      const std::vector<float> weight = random_values(cols, 3);
      TestRows own = x;
      TestRows expected(rows, cols), h(rows, cols);
      const auto plain_step = reference_->begin(plain_batch(rows));
      const auto step = ops->begin(plain_batch(rows));
      reference_->norm(*plain_step, x.view(), view(weight), 1e-5F, expected.view());
      ops->norm(*step, own.view(), view(weight), 1e-5F, h.view());
      EXPECT_TRUE(h == expected) << cols;
      reference_->add_norm(*plain_step, x.view(), z.view(), view(weight), 1e-6F, expected.view());
      ops->add_norm(*step, own.view(), z.view(), view(weight), 1e-6F, h.view());
      EXPECT_TRUE(own == x) << cols;
      EXPECT_TRUE(h == expected) << cols;
      TestRows untouched = h;
      reference_->add_norm(*plain_step, x.view(), z.view(), {}, 1e-6F, expected.view());
      ops->add_norm(*step, own.view(), z.view(), {}, 1e-6F, h.view());
      EXPECT_TRUE(own == x) << cols;
      EXPECT_TRUE(h == untouched) << cols;
    }
  }
}

TEST_P(RowsTest, EmbeddingsAndTheInputOfMtp) {
  const auto ops = fast();
  for (const int bits : {4, 0}) {
    const TestMatrix table(50, 192, bits, 64, 4);
    const auto plain = reference_->pack_table(table.data);
    const auto packed = ops->pack_table(table.data);
    EXPECT_EQ(packed->bytes, plain->bytes);
    const std::vector<int32_t> tokens = {49, 0, 7, 7, 31};
    TestRows expected(5, 192), x(5, 192), expected_pair(5, 384), pair(5, 384);
    TestRows hidden = hard_rows(5, 192, 5);
    const std::vector<float> enorm = random_values(192, 6), hnorm = random_values(192, 7);
    const auto plain_step = reference_->begin(plain_batch(5));
    const auto step = ops->begin(plain_batch(5));
    reference_->embed(*plain_step, tokens, *plain, expected.view());
    ops->embed(*step, tokens, *packed, x.view());
    EXPECT_TRUE(x == expected);
    reference_->mtp_input(*plain_step, tokens, *plain, hidden.view(), view(enorm), view(hnorm), 1e-5F,
                          expected_pair.view());
    ops->mtp_input(*step, tokens, *packed, hidden.view(), view(enorm), view(hnorm), 1e-5F, pair.view());
    EXPECT_TRUE(pair == expected_pair);
  }
}

TEST_P(RowsTest, MemoryIsCountedAndHoldsWhatIsPutThere) {
  const auto ops = fast(1);
  const int64_t before = ops->allocated();
  {
    const Buffer buffer = ops->allocate(100);
    EXPECT_EQ(ops->allocated() - before, 100);
    const std::vector<float> values = random_values(25, 8);
    std::vector<float> back(25);
    ops->upload(buffer.get(), values.data(), 100);
    ops->download(back.data(), buffer.get(), 100);
    EXPECT_EQ(back, values);
  }
  EXPECT_EQ(ops->allocated(), before);
}

}  // namespace
}  // namespace tercet::backend_test
