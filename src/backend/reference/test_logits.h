// Rows of logits and ways to draw from them, for tests of every backend.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "backend/reference/hard_rows.h"
#include "ops/draw.h"

namespace tercet::backend_test {

inline void expect_same(const RowResult& a, const RowResult& b, const std::string& what) {
  EXPECT_EQ(a.failed, b.failed) << what;
  EXPECT_EQ(a.token, b.token) << what;
  EXPECT_EQ(std::memcmp(&a.logprob, &b.logprob, 4), 0) << what;
  ASSERT_EQ(a.top.size(), b.top.size()) << what;
  for (size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token, b.top[i].token) << what;
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob) << what;
  }
  ASSERT_EQ(a.all.size(), b.all.size()) << what;
  EXPECT_TRUE(a.all.empty() || std::memcmp(a.all.data(), b.all.data(), a.all.size() * 4) == 0) << what;
}

/// Logits of several kinds: spread, peaked, full of ties, all alike, with zeros of both signs on top.
inline std::vector<std::vector<float>> test_logits(size_t vocabulary) {
  std::vector<std::vector<float>> out;
  const auto make = [&](auto value) {
    std::vector<float> x(vocabulary);
    for (size_t t = 0; t < x.size(); ++t) x[t] = value(reference::uniform(1, static_cast<uint32_t>(t)), t);
    out.push_back(x);
  };
  make([](float u, size_t) { return 8.0F * u; });
  make([](float u, size_t) { return 60.0F * u * u * u; });
  make([](float u, size_t t) { return t == 3 ? 40.0F : 10.0F * u; });
  make([](float u, size_t) { return static_cast<float>(static_cast<int>(4.0F * u)); });
  make([](float, size_t) { return 1.25F; });
  make([](float u, size_t t) { return t % 5 == 2 ? -0.0F : t % 7 == 3 ? 0.0F : -1.0F - 20.0F * (u + 1.0F); });
  make([](float u, size_t) { return 3e37F * u; });
  return out;
}

inline std::vector<DrawParams> test_params(size_t vocabulary) {
  std::vector<DrawParams> out;
  for (const float temperature : {0.0F, 0.3F, 1.0F, 2.5F}) {
    for (const int32_t top_k : {0, 1, 5, 300, 1 << 30}) {
      for (const float top_p : {1.0F, 0.95F, 0.5F, 1e-6F, 1.0F - 0x1p-24F}) {
        for (const float min_p : {0.0F, 0.05F, 1e-14F}) {
          DrawParams p;
          p.temperature = temperature;
          p.top_k = top_k;
          p.top_p = top_p;
          p.min_p = min_p;
          p.seed = 12345678901234567ULL + out.size();
          p.position = static_cast<uint32_t>(7 * out.size());
          if (out.size() % 3 == 1) {
            p.repetition_penalty = 1.3F;
            p.presence_penalty = 0.5F;
            p.frequency_penalty = -0.25F;
            p.counts = {{0, true, 0}, {3, true, 2}, {static_cast<int32_t>(vocabulary) - 1, false, 5}};
            p.bias = {{1, 4.0F}, {2, -100.0F}};
          }
          if (out.size() % 4 == 2) {
            p.mask.assign((vocabulary + 31) / 32, 0x5a5a5a5aU);
          }
          out.push_back(p);
        }
      }
    }
  }
  return out;
}

}  // namespace tercet::backend_test
