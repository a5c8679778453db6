#include <algorithm>

#include "backend/reference/test_pair.h"

namespace tercet::backend_test {
namespace {

using AttentionTest = EveryBackend;
TERCET_EVERY_BACKEND(AttentionTest);

constexpr float kEps = 1e-5F;
constexpr RopeParams kRope{11158840.0};
constexpr int32_t kLayers = 2;

/// Both backends with a cache each, fed the same steps.
struct Both {
  Ops& plain;
  Ops& fast;
  int32_t heads, kv_heads;
  std::unique_ptr<KvCache> plain_cache, fast_cache;
  std::vector<float> q_norm = random_values(128, 1), k_norm = random_values(128, 2);

  Both(Ops& a, Ops& b, int32_t query_heads, int32_t key_heads, int32_t pages)
      : plain(a), fast(b), heads(query_heads), kv_heads(key_heads) {
    plain_cache = plain.make_cache(kLayers, kv_heads, pages);
    fast_cache = fast.make_cache(kLayers, kv_heads, pages);
    for (auto* norm : {&q_norm, &k_norm}) {
      for (float& x : *norm) x = 1.0F + 0.5F * x;
    }
  }

  /// Writes and attends; the bits of everything that comes out must be equal.
  void step(const Batch& batch, TestRows qkv, const char* what) {
    const int64_t rows = batch.rows();
    TestRows own = qkv;
    const auto plain_step = plain.begin(batch);
    const auto fast_step = fast.begin(batch);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      TestRows expected(rows, heads * kHeadSize), out(rows, heads * kHeadSize);
      plain.write_kv(*plain_step, qkv.view(), view(q_norm), view(k_norm), kEps, kRope, *plain_cache, layer);
      fast.write_kv(*fast_step, own.view(), view(q_norm), view(k_norm), kEps, kRope, *fast_cache, layer);
      ASSERT_TRUE(own == qkv) << what;
      plain.attention(*plain_step, qkv.view(), *plain_cache, layer, expected.view());
      fast.attention(*fast_step, own.view(), *fast_cache, layer, out.view());
      ASSERT_TRUE(out == expected) << what << ", layer " << layer;
    }
    ASSERT_EQ(fast.failed(*fast_step), plain.failed(*plain_step)) << what;
  }

  TestRows rows(int64_t count, uint64_t key) const {
    return hard_rows(count, (heads + 2 * kv_heads) * kHeadSize, key);
  }
};

/// Rows of one sequence from `position`; its pages lie in the cache in no order.
Batch chunk(int32_t position, int32_t rows) {
  Batch batch;
  batch.tokens.assign(static_cast<size_t>(rows), 0);
  SequenceRows sequence{.first_row = 0, .rows = rows, .position = position, .pages = {}};
  for (int32_t b = 0; b * kPageTokens < position + rows; ++b) sequence.pages.push_back((b * 7 + 3) % 32);
  batch.sequences.push_back(sequence);
  return batch;
}

TEST_P(AttentionTest, EveryPositionWhereBlocksAndSpansBegin) {
  const auto ops = fast();
  for (const auto& [heads, kv_heads] : {std::pair{8, 1}, {6, 2}, {2, 2}, {16, 1}}) {
    if (brief() && heads != 8) continue;
    const int32_t last = heads == 8 && !brief() ? 1025 : 300;  // the reference takes its time
    Both both(*reference_, *ops, heads, kv_heads, 32);
    int32_t position = 0;
    uint64_t key = 50;
    // Single tokens at the borders of blocks (64) and spans (256), chunks between them.
    for (const int32_t next :
         {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 255, 256, 257, 300, 1023, 1024, 1025}) {
      if (next > last) break;
      both.step(chunk(position, next - position), both.rows(next - position, key), "chunk");
      position = next;
      ++key;
    }
  }
}

TEST_P(AttentionTest, ManySequencesAndThreads) {
  for (int threads = 1; threads <= (brief() ? 1 : 4); ++threads) {
    const auto ops = fast(threads);
    Both both(*reference_, *ops, 4, 1, 32);
    Batch first;
    // Three sequences of their own pages: 0…9, 10…19 and 20…29.
    for (const int32_t rows : {brief() ? 200 : 600, 1, 70}) {
      SequenceRows sequence{.first_row = first.rows(), .rows = rows, .position = 0, .pages = {}};
      for (int32_t b = 0; b < 10; ++b) {
        sequence.pages.push_back(b + 10 * static_cast<int32_t>(first.sequences.size()));
      }
      first.sequences.push_back(sequence);
      first.tokens.resize(first.tokens.size() + static_cast<size_t>(rows));
    }
    both.step(first, both.rows(first.rows(), 60), "prompt");
    for (const int32_t rows : {1, 3}) {
      Batch next = first;
      next.tokens.clear();
      for (SequenceRows& sequence : next.sequences) {
        sequence.position += sequence.rows;
        sequence.rows = rows;
        sequence.first_row = next.rows();
        next.tokens.resize(next.tokens.size() + static_cast<size_t>(rows));
      }
      both.step(next, both.rows(next.rows(), 61), "continuation");
      first = next;
    }
    Batch alone;  // one row whose spans all threads share
    alone.tokens.assign(1, 0);
    alone.sequences.push_back(first.sequences[0]);
    alone.sequences[0].position += alone.sequences[0].rows;
    alone.sequences[0].rows = 1;
    alone.sequences[0].first_row = 0;
    both.step(alone, both.rows(1, 62), "alone");
  }
}

TEST_P(AttentionTest, FailedRowsAndTinyOnes) {
  const auto ops = fast();
  Both both(*reference_, *ops, 4, 2, 32);
  TestRows rows = both.rows(40, 70);
  for (size_t i = 0; i < 1024; ++i) {
    rows.values[7 * 1024 + i] *= 0x1p-50F;
    rows.values[9 * 1024 + i] = 0.0F;
    rows.values[11 * 1024 + i] *= 0x1p40F;
  }
  both.step(chunk(0, 40), rows, "tiny and large rows");
  TestRows bad = both.rows(6, 71);
  bad.values[0 * 1024 + 1] = std::numeric_limits<float>::quiet_NaN();           // q
  bad.values[2 * 1024 + 4 * 128 + 3] = std::numeric_limits<float>::infinity();  // k
  bad.values[4 * 1024 + 7 * 128 + 3] = 0x1.8p63F;                               // v
  const auto step = ops->begin(chunk(40, 6));
  const auto plain_step = reference_->begin(chunk(40, 6));
  for (const auto& [backend, current, cache] :
       {std::tuple{ops.get(), step.get(), both.fast_cache.get()},
        {reference_.get(), plain_step.get(), both.plain_cache.get()}}) {
    TestRows qkv = bad;
    TestRows out(6, 512);
    backend->write_kv(*current, qkv.view(), view(both.q_norm), view(both.k_norm), kEps, kRope, *cache, 0);
    backend->attention(*current, qkv.view(), *cache, 0, out.view());
  }
  EXPECT_EQ(ops->failed(*step), (std::vector<uint8_t>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(ops->failed(*step), reference_->failed(*plain_step));
}

TEST_P(AttentionTest, CopiedPages) {
  const auto ops = fast();
  Both both(*reference_, *ops, 4, 2, 32);
  both.step(chunk(0, 100), both.rows(100, 80), "prompt");
  const PageCopy copies[] = {{3, 20}, {10, 21}};  // the sequence's two pages
  reference_->copy_pages(*both.plain_cache, copies);
  ops->copy_pages(*both.fast_cache, copies);
  Batch batch = chunk(90, 5);
  batch.sequences[0].pages = {20, 21};
  both.step(batch, both.rows(5, 81), "after the copy");
  both.step(chunk(100, 2), both.rows(2, 82), "the original");
}

TEST_P(AttentionTest, CacheTakesTheBytesThatAreStated) {
  const auto ops = fast(1);
  const int64_t before = ops->allocated();
  const auto cache = ops->make_cache(3, 2, 5);
  EXPECT_EQ(cache->bytes, kv_cache_bytes(3, 2, 5));
  EXPECT_EQ(ops->allocated() - before, cache->bytes);
}

}  // namespace
}  // namespace tercet::backend_test
