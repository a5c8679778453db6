#include "backend/reference/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/reference/hard_rows.h"
#include "ops/exact_math.h"

namespace tercet::reference {
namespace {

/// One KV head's keys and values, rounded, with their real values beside.
struct Keys {
  std::vector<int16_t> k, v;
  std::vector<int8_t> ke, ve;

  int32_t size() const { return static_cast<int32_t>(ke.size()); }
  void add(const std::vector<float>& key, const std::vector<float>& value) {
    RoundedHead rounded;
    EXPECT_TRUE(round_by_norm(key, rounded));
    k.insert(k.end(), rounded.n, rounded.n + 128);
    ke.push_back(rounded.exponent);
    EXPECT_TRUE(round_by_largest(value, rounded));
    v.insert(v.end(), rounded.n, rounded.n + 128);
    ve.push_back(rounded.exponent);
  }
  double key(int32_t i, int d) const {
    return std::ldexp(k[static_cast<size_t>(i * 128 + d)], ke[static_cast<size_t>(i)] - 12);
  }
  double value(int32_t i, int d) const {
    return std::ldexp(v[static_cast<size_t>(i * 128 + d)], ve[static_cast<size_t>(i)] - 10);
  }
  KeyBlock block(int32_t b) const {
    const auto at = static_cast<size_t>(b) * 64;
    return {k.data() + at * 128, ke.data() + at, v.data() + at * 128, ve.data() + at};
  }
};

std::vector<float> random_head(uint64_t key, uint32_t row, float scale) {
  std::vector<float> x(128);
  for (uint32_t d = 0; d < 128; ++d) x[d] = scale * uniform(key, row * 128 + d);
  return x;
}

std::vector<float> run(const RoundedHead& q, const Keys& keys, int32_t position) {
  std::vector<float> out(128);
  attend(
      q, position, [&](int32_t b) { return keys.block(b); }, out.data());
  return out;
}

TEST(RoundHead, KeepsTheNumbersOfTheRule) {
  RoundedHead r;
  std::vector<float> x(128, 0.0F);
  x[0] = 3.0F;
  x[1] = -4.0F;
  ASSERT_TRUE(round_by_norm(x, r));  // norm 5·(1 + 2^-9): E = 3, unit 2^-9
  EXPECT_EQ(r.exponent, 3);
  EXPECT_EQ(r.n[0], 3 * 512);
  EXPECT_EQ(r.n[1], -4 * 512);
  ASSERT_TRUE(round_by_largest(x, r));  // E = 2, unit 2^-8
  EXPECT_EQ(r.exponent, 2);
  EXPECT_EQ(r.n[1], -1024);
  x[5] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(round_by_norm(x, r));
  EXPECT_FALSE(round_by_largest(x, r));
  EXPECT_EQ(r.n[0], 0);
}

TEST(RoundHead, ScoresOfAnyTwoHeadsAreExact) {
  std::vector<RoundedHead> heads;
  for (const std::vector<float>& row : hard_rows(128)) {
    heads.emplace_back();
    ASSERT_TRUE(round_by_norm(row, heads.back()));
  }
  for (const RoundedHead& a : heads) {
    for (const RoundedHead& b : heads) {
      int64_t size = 0;
      for (int d = 0; d < 128; ++d) size += std::abs(int64_t{a.n[d]} * b.n[d]);
      EXPECT_LE(size, 1 << 24);
    }
  }
}

TEST(Attention, OneKeyGivesItsValue) {
  Keys keys;
  keys.add(random_head(1, 0, 2.0F), random_head(2, 0, 3.0F));
  RoundedHead q;
  ASSERT_TRUE(round_by_norm(random_head(3, 0, 1.0F), q));
  const std::vector<float> out = run(q, keys, 0);
  // p = exp2(t − r), P = p' to 11 bits, l = p: so the value comes back within 2^-11.
  for (int d = 0; d < 128; ++d)
    EXPECT_NEAR(out[static_cast<size_t>(d)], keys.value(0, d), std::abs(keys.value(0, d)) * 0x1p-11);
}

TEST(Attention, EqualKeysGiveTheMean) {
  Keys keys;
  for (uint32_t i = 0; i < 64; ++i)
    keys.add(std::vector<float>(128, 0.0F), std::vector<float>(128, i % 2 == 0 ? 1.0F : 3.0F));
  RoundedHead q;
  ASSERT_TRUE(round_by_norm(random_head(3, 0, 1.0F), q));
  // Scores are 0, weights exactly 1, values exact: so is the mean.
  EXPECT_EQ(run(q, keys, 63), std::vector<float>(128, 2.0F));
  EXPECT_EQ(run(q, keys, 1), std::vector<float>(128, 2.0F));
  EXPECT_EQ(run(q, keys, 0), std::vector<float>(128, 1.0F));
}

// Against softmax in binary64. A weight errs by at most 2^-12 of itself (11 bits) or 2^-15 of its block's sum
// (its unit's half), so the result by at most (2^-12 + 64·2^-15) of Σ weight·|v| in a block, plus float32's
// roundings: 2^-8 of Σ softmax·|v| holds them all.
TEST(Attention, IsNearSoftmax) {
  Keys keys;
  for (uint32_t i = 0; i < 700; ++i)
    keys.add(random_head(4, i, 3.0F), random_head(5, i, std::ldexp(1.0F, static_cast<int>(i % 9) - 4)));
  for (const int32_t position : {0, 1, 62, 63, 64, 65, 127, 255, 256, 257, 511, 512, 699}) {
    RoundedHead q;
    ASSERT_TRUE(round_by_norm(random_head(6, static_cast<uint32_t>(position), 4.0F), q));
    const std::vector<float> out = run(q, keys, position);
    std::vector<double> weight(static_cast<size_t>(position) + 1);
    double sum = 0;
    for (int32_t i = 0; i <= position; ++i) {
      double score = 0;
      for (int d = 0; d < 128; ++d) score += std::ldexp(q.n[d], q.exponent - 12) * keys.key(i, d);
      weight[static_cast<size_t>(i)] = std::exp(score / std::sqrt(128.0));
      sum += weight[static_cast<size_t>(i)];
    }
    for (int d = 0; d < 128; ++d) {
      double want = 0, size = 0;
      for (int32_t i = 0; i <= position; ++i) {
        want += weight[static_cast<size_t>(i)] / sum * keys.value(i, d);
        size += weight[static_cast<size_t>(i)] / sum * std::abs(keys.value(i, d));
      }
      EXPECT_NEAR(out[static_cast<size_t>(d)], want, size * 0x1p-8) << position << " " << d;
    }
  }
}

TEST(Attention, AFarLargerScoreTakesAll) {
  Keys keys;
  for (uint32_t i = 0; i < 300; ++i) {
    std::vector<float> key(128, 0.0F);
    key[0] = i == 130 ? 4000.0F : 0.0F;
    keys.add(key, std::vector<float>(128, static_cast<float>(i)));
  }
  std::vector<float> query(128, 0.0F);
  query[0] = 10.0F;
  RoundedHead q;
  ASSERT_TRUE(round_by_norm(query, q));
  EXPECT_NEAR(run(q, keys, 299)[7], 130.0F, 130 * 0x1p-11);
  EXPECT_EQ(run(q, keys, 129)[7], 64.5F);  // before it, all are equal: the mean of 0 … 129
}

}  // namespace
}  // namespace tercet::reference
