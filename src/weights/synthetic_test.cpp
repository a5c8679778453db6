#include "weights/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "weights/test_files.h"

namespace tercet {
namespace {

std::shared_ptr<const TensorSource> make(uint64_t seed, int threads) {
  return make_synthetic_source({{{"m.weight", DType::u32, {64, 1027}}, SyntheticKind::packed, 0},
                                {{"m.scales", DType::bf16, {300, 301}}, SyntheticKind::scales, 0.5, 4},
                                {{"m.biases", DType::bf16, {300, 301}}, SyntheticKind::biases, 0.5, 4},
                                {{"f.weight", DType::bf16, {77, 1001}}, SyntheticKind::weights, 0.25},
                                {{"norm", DType::bf16, {129}}, SyntheticKind::norm, 2},
                                {{"bias", DType::f32, {31}}, SyntheticKind::offsets, 0.05},
                                {{"same", DType::f32, {7}}, SyntheticKind::constant, 3}},
                               seed, threads);
}

/// FNV-1a of all tensors' bytes in the order of their names.
uint64_t digest(const TensorSource& source) {
  uint64_t h = 0xcbf29ce484222325;
  for (const TensorInfo& tensor : source.tensors()) {
    for (const char c : testing::bytes_of(source, tensor.name))
      h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return h;
}

std::vector<double> values(const TensorSource& source, const std::string& name) {
  const std::string bytes = testing::bytes_of(source, name);
  std::vector<double> result;
  if (source.find(name)->dtype == DType::bf16) {
    for (size_t i = 0; i < bytes.size(); i += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + i, 2);
      result.push_back(static_cast<double>(bf16_to_float(bits)));
    }
  } else {
    for (size_t i = 0; i < bytes.size(); i += 4) {
      float value = 0;
      std::memcpy(&value, bytes.data() + i, 4);
      result.push_back(static_cast<double>(value));
    }
  }
  return result;
}

double mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double rms(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size()));
}

// The golden digests of synthetic models stand on these bits.
TEST(Synthetic, TheBitsAreFixed) { EXPECT_EQ(digest(*make(7, 1)), 4707224630852899397u); }

TEST(Synthetic, BitsDependOnTheSeedAndNotOnThreads) {
  const uint64_t expected = digest(*make(7, 1));
  EXPECT_EQ(digest(*make(7, 2)), expected);
  EXPECT_EQ(digest(*make(7, 5)), expected);
  EXPECT_NE(digest(*make(8, 1)), expected);
}

TEST(Synthetic, LargeAndSmallTensorsDrawAlike) {  // the large ones look values up
  const auto make_norm = [](int64_t n) {
    return make_synthetic_source({{{"norm", DType::bf16, {n}}, SyntheticKind::norm, 2}}, 3, 1);
  };
  const std::string large = testing::bytes_of(*make_norm(70'000), "norm");
  EXPECT_EQ(testing::bytes_of(*make_norm(60'000), "norm"), large.substr(0, 120'000));
}

TEST(Synthetic, AffineWeightsHaveTheGivenSpread) {
  const auto source = make(7, 1);
  const std::vector<double> scales = values(*source, "m.scales");
  const std::vector<double> biases = values(*source, "m.biases");
  double sum = 0, squares = 0;
  int negative = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    negative += scales[i] < 0 ? 1 : 0;
    for (int q = 0; q < 16; ++q) {
      const double w = scales[i] * q + biases[i];
      sum += w;
      squares += w * w;
    }
  }
  const double count = 16 * static_cast<double>(scales.size());
  EXPECT_NEAR(sum / count, 0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / count), 0.5, 0.03);  // a factor in [0.5, 1.5) adds 4 %
  EXPECT_NEAR(negative / static_cast<double>(scales.size()), 0.5, 0.01);
}

TEST(Synthetic, FloatsHaveTheGivenSpread) {
  const auto source = make(7, 1);
  EXPECT_NEAR(rms(values(*source, "f.weight")), 0.25, 0.002);
  EXPECT_NEAR(mean(values(*source, "f.weight")), 0, 0.003);
  const std::vector<double> norm = values(*source, "norm");
  EXPECT_NEAR(mean(norm), 2, 0.1);
  EXPECT_GE(*std::ranges::min_element(norm), 1.5);
  EXPECT_LE(*std::ranges::max_element(norm), 2.5);
  const std::vector<double> bias = values(*source, "bias");
  EXPECT_LE(std::abs(*std::ranges::max_element(bias)), 0.05);
  EXPECT_NEAR(rms(bias), 0.05 / std::sqrt(3), 0.01);
  EXPECT_EQ(values(*source, "same"), std::vector<double>(7, 3.0));
}

}  // namespace
}  // namespace tercet
