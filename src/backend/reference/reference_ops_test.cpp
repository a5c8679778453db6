#include "backend/reference/reference_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/reference/hard_rows.h"
#include "ops/exact_math.h"

namespace tercet {
namespace {

/// bf16 weights that look random.
struct Weights {
  std::vector<uint16_t> bits;
  MatrixData data;

  Weights(int64_t n, int64_t k, uint64_t key) {
    for (int64_t i = 0; i < n * k; ++i) {
      bits.push_back(float_to_bf16(0.1F * reference::uniform(key, static_cast<uint32_t>(i))));
    }
    data = {.n = n,
            .k = k,
            .bits = 0,
            .group = 64,
            .dtype = DType::bf16,
            .values = reinterpret_cast<const std::byte*>(bits.data()),
            .scales = nullptr,
            .biases = nullptr,
            .owner = nullptr};
  }
};

Batch batch_of(int32_t rows) {
  Batch batch;
  batch.tokens.assign(static_cast<size_t>(rows), 0);
  batch.sequences.push_back({.first_row = 0, .rows = rows, .position = 0, .pages = {0, 1}});
  return batch;
}

std::vector<float> random_rows(int64_t count, uint64_t key) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = reference::uniform(key, static_cast<uint32_t>(i));
  return x;
}

class ReferenceOps : public testing::Test {
 protected:
  std::unique_ptr<Ops> ops_ = make_reference_ops(2);
};

TEST_F(ReferenceOps, CountsWhatItHolds) {
  EXPECT_EQ(ops_->allocated(), 0);
  {
    const Buffer buffer = ops_->allocate(1000);
    EXPECT_EQ(ops_->allocated(), 1000);
    const auto* bytes = static_cast<const uint8_t*>(buffer.get());
    EXPECT_EQ(bytes[0], 0xff);  // poisoned: as floats, NaN
    EXPECT_EQ(bytes[999], 0xff);
  }
  EXPECT_EQ(ops_->allocated(), 0);
  const auto cache = ops_->make_cache(2, 3, 5);
  EXPECT_EQ(cache->bytes, 2 * 3 * 5 * 64 * 2 * 257);
  EXPECT_EQ(ops_->allocated(), cache->bytes);
}

TEST_F(ReferenceOps, AFailedRowIsFlaggedAndTouchesNoOther) {
  const Weights w(24, 128, 1);
  const auto linear = ops_->pack_linear({&w.data, 1});
  std::vector<float> h = random_rows(3 * 128, 2);
  std::vector<float> right(3 * 24);
  const auto clean = ops_->begin(batch_of(3));
  ops_->linear(*clean, {h.data(), 3, 128}, *linear, {right.data(), 3, 24});
  EXPECT_EQ(ops_->failed(*clean), (std::vector<uint8_t>{0, 0, 0}));

  h[128 + 77] = std::nanf("");
  std::vector<float> y(3 * 24, std::nanf(""));
  const auto step = ops_->begin(batch_of(3));
  ops_->linear(*step, {h.data(), 3, 128}, *linear, {y.data(), 3, 24});
  EXPECT_EQ(ops_->failed(*step), (std::vector<uint8_t>{0, 1, 0}));
  EXPECT_EQ(std::memcmp(y.data(), right.data(), 24 * 4), 0);
  EXPECT_EQ(std::memcmp(y.data() + 48, right.data() + 48, 24 * 4), 0);
  for (size_t n = 24; n < 48; ++n) EXPECT_EQ(y[n], 0.0F);
}

TEST_F(ReferenceOps, LinearOfTakesTheRowsThatAreNamed) {
  const Weights w(24, 128, 1);
  const auto linear = ops_->pack_linear({&w.data, 1});
  std::vector<float> h = random_rows(4 * 128, 2);
  std::vector<float> all(4 * 24), some(2 * 24);
  const auto step = ops_->begin(batch_of(4));
  ops_->linear(*step, {h.data(), 4, 128}, *linear, {all.data(), 4, 24});
  ops_->linear_of(*step, {h.data(), 4, 128}, std::vector<int32_t>{3, 1}, *linear, {some.data(), 2, 24});
  EXPECT_EQ(std::memcmp(some.data(), all.data() + 72, 96), 0);
  EXPECT_EQ(std::memcmp(some.data() + 24, all.data() + 24, 96), 0);
}

TEST_F(ReferenceOps, StackedPartsAreSeparateProducts) {
  const Weights a(16, 128, 1), b(40, 128, 2);
  const MatrixData both[] = {a.data, b.data};
  const auto stacked = ops_->pack_linear(both);
  const auto alone = ops_->pack_linear({&b.data, 1});
  std::vector<float> h = random_rows(2 * 128, 3);
  std::vector<float> y(2 * 56), second(2 * 40);
  const auto step = ops_->begin(batch_of(2));
  ops_->linear(*step, {h.data(), 2, 128}, *stacked, {y.data(), 2, 56});
  ops_->linear(*step, {h.data(), 2, 128}, *alone, {second.data(), 2, 40});
  for (size_t r = 0; r < 2; ++r)
    EXPECT_EQ(std::memcmp(y.data() + r * 56 + 16, second.data() + r * 40, 160), 0);
}

TEST_F(ReferenceOps, ExpertsAreProductsAndAWeightedSum) {
  // Three experts; a row that takes 0 and 2 with weights 0.5 and 2 gets fma(2, y2, fma(0.5, y0, 0)) + shared.
  std::vector<Weights> gate, up, down;
  std::vector<MatrixData> gates, ups, downs;
  for (uint64_t e = 0; e < 3; ++e) {
    gate.emplace_back(64, 128, 10 + e);
    up.emplace_back(64, 128, 20 + e);
    down.emplace_back(32, 64, 30 + e);
  }
  for (size_t e = 0; e < 3; ++e) {
    gates.push_back(gate[e].data);
    ups.push_back(up[e].data);
    downs.push_back(down[e].data);
  }
  const auto experts = ops_->pack_experts(gates, ups, downs);
  std::vector<float> h = random_rows(128, 4), a(2 * 64), z(32), shared = random_rows(32, 5);
  int32_t chosen[] = {0, 2};
  float weights[] = {0.5F, 2.0F};
  const Routes routes{chosen, weights, 1, 2};
  const auto step = ops_->begin(batch_of(1));
  ops_->experts_gate_up(*step, {h.data(), 1, 128}, routes, *experts, {a.data(), 2, 64});
  ops_->experts_down(*step, {a.data(), 2, 64}, routes, *experts, {shared.data(), 1, 32}, {z.data(), 1, 32});

  std::vector<std::vector<float>> y;
  for (size_t j = 0; j < 2; ++j) {
    const auto e = static_cast<size_t>(chosen[j]);
    const MatrixData both[] = {gates[e], ups[e]};
    std::vector<float> one(64), out(32);
    ops_->gate_up(*step, {h.data(), 1, 128}, *ops_->pack_linear(both), {one.data(), 1, 64});
    EXPECT_EQ(std::memcmp(one.data(), a.data() + j * 64, 256), 0);
    ops_->linear(*step, {one.data(), 1, 64}, *ops_->pack_linear({&downs[e], 1}), {out.data(), 1, 32});
    y.push_back(out);
  }
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(z[i], std::fmaf(2.0F, y[1][i], std::fmaf(0.5F, y[0][i], 0.0F)) + shared[i]);
  }
}

TEST_F(ReferenceOps, TheRouterSeesItsInputTwice) {
  // Weights of 1 in one column: the logit is x′ + (x − x′)′, which 24 bits of x survive nearly whole.
  std::vector<uint16_t> bits(2 * 64, 0);
  bits[3] = float_to_bf16(1.0F);
  const MatrixData data{.n = 2,
                        .k = 64,
                        .bits = 0,
                        .group = 64,
                        .dtype = DType::bf16,
                        .values = reinterpret_cast<const std::byte*>(bits.data()),
                        .scales = nullptr,
                        .biases = nullptr,
                        .owner = nullptr};
  const auto router = ops_->pack_linear({&data, 1});
  std::vector<float> h(64, 0.0F);
  h[3] = 1.2345678F;
  const std::vector<float> bias{0.0F, 0.0F};
  int32_t expert = -1;
  float weight = 0;
  const auto step = ops_->begin(batch_of(1));
  ops_->route(*step, {h.data(), 1, 64}, *router, {bias.data(), 2},
              {.chosen = 1, .scaling = 1.0F, .normalise = false}, {&expert, &weight, 1, 1});
  EXPECT_EQ(expert, 0);
  EXPECT_NEAR(weight, 1 / (1 + std::exp(-1.2345678)), 1e-6);  // x′ alone would be off by 2e-5
}

TEST_F(ReferenceOps, PagesAreCopiedWhole) {
  auto cache = ops_->make_cache(1, 1, 3);
  const std::vector<float> ones(128, 1.0F);
  std::vector<float> qkv = random_rows(2 * 384, 6);
  const Vector norm{ones.data(), 128};
  Batch batch;
  batch.tokens = {0, 0};
  batch.sequences = {{.first_row = 0, .rows = 2, .position = 0, .pages = {1}}};
  const auto step = ops_->begin(batch);
  const Rows rows{qkv.data(), 2, 384};
  ops_->write_kv(*step, rows, norm, norm, 1e-5F, {10000.0}, *cache, 0);
  std::vector<float> right(2 * 128), copied(2 * 128);
  ops_->attention(*step, rows, *cache, 0, {right.data(), 2, 128});
  ops_->copy_pages(*cache, std::vector<PageCopy>{{1, 2}});
  batch.sequences[0].pages = {2};
  const auto again = ops_->begin(batch);
  ops_->attention(*again, rows, *cache, 0, {copied.data(), 2, 128});
  EXPECT_EQ(right, copied);
}

TEST_F(ReferenceOps, MtpInputNormsBothHalves) {
  const Weights table(4, 64, 7);
  const auto packed = ops_->pack_table(table.data);
  std::vector<float> hidden = random_rows(64, 8), out(128), x(64), want(64);
  std::vector<float> enorm(64, 2.0F), hnorm(64, 3.0F);
  const auto step = ops_->begin(batch_of(1));
  const std::vector<int32_t> next{3};
  ops_->mtp_input(*step, next, *packed, {hidden.data(), 1, 64}, {enorm.data(), 64}, {hnorm.data(), 64}, 1e-5F,
                  {out.data(), 1, 128});
  ops_->embed(*step, next, *packed, {x.data(), 1, 64});
  ops_->norm(*step, {x.data(), 1, 64}, {enorm.data(), 64}, 1e-5F, {want.data(), 1, 64});
  EXPECT_EQ(std::memcmp(out.data(), want.data(), 256), 0);
  ops_->norm(*step, {hidden.data(), 1, 64}, {hnorm.data(), 64}, 1e-5F, {want.data(), 1, 64});
  EXPECT_EQ(std::memcmp(out.data() + 64, want.data(), 256), 0);
}

}  // namespace
}  // namespace tercet
