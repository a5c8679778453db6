#include "weights/quantization.h"

#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace tercet {
namespace {

std::string error(const std::string& section) {
  return testing::error_of(parse_quantization("{\"quantization\":" + section + "}"));
}

TEST(Quantization, ReadsDefaultsAndModules) {
  const auto q = parse_quantization(R"({"quantization": {"group_size": 32, "bits": 6, "mode": "affine",
    "router": {"group_size": 128, "bits": 8}, "float": false, "usual": true}})");
  ASSERT_TRUE(q) << q.error().message;
  EXPECT_EQ(q->defaults, (QuantizationEntry{6, 32}));
  EXPECT_EQ(q->of("router"), (QuantizationEntry{8, 128}));
  EXPECT_EQ(q->of("float").bits, 0);
  EXPECT_EQ(q->of("usual"), (QuantizationEntry{6, 32}));
  EXPECT_EQ(q->of("other"), (QuantizationEntry{6, 32}));
  EXPECT_EQ(q->modules.size(), 3);
}

TEST(Quantization, AbsentMeansFloats) {
  for (const char* config : {"{}", R"({"quantization": null, "quantization_config": null})"}) {
    const auto q = parse_quantization(config);
    ASSERT_TRUE(q) << q.error().message;
    EXPECT_EQ(q->of("any").bits, 0);
  }
}

TEST(Quantization, BothSpellingsMustAgree) {
  const std::string four = R"({"bits":4,"group_size":64})";
  const auto both = [](const std::string& a, const std::string& b) {
    return parse_quantization(fmt::format(R"({{"quantization":{},"quantization_config":{}}})", a, b));
  };
  EXPECT_TRUE(both(four, four));
  EXPECT_TRUE(parse_quantization(R"({"quantization_config":{"bits":4,"group_size":64}})"));
  EXPECT_EQ(testing::error_of(both(four, R"({"bits":8,"group_size":64})")),
            "quantization and quantization_config disagree");
  EXPECT_EQ(testing::error_of(both(four, R"({"bits":4,"group_size":64,"a":false})")),
            "quantization and quantization_config disagree");
}

TEST(Quantization, RefusesSchemesByName) {
  EXPECT_EQ(testing::error_of(parse_quantization(
                R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})")),
            "quantization_config.quant_method is \"fp8\": such weights are not read yet");
  EXPECT_EQ(
      testing::error_of(parse_quantization(
          R"({"quantization_config":{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized"}})")),
      "quantization_config.quant_method is \"compressed-tensors\" (format \"nvfp4-pack-quantized\"): such "
      "weights are not read yet");
  EXPECT_EQ(error(R"({"bits":4,"group_size":32,"mode":"mxfp4"})"),
            "quantization.mode is \"mxfp4\": mxfp4 weights are not read yet (expected \"affine\")");
  EXPECT_EQ(error(R"({"bits":4,"group_size":64,"m":{"bits":4,"group_size":16,"mode":"nvfp4"}})"),
            "quantization.m.mode is \"nvfp4\": nvfp4 weights are not read yet (expected \"affine\")");
}

TEST(Quantization, NothingIsDefaulted) {
  EXPECT_EQ(error(R"({"group_size":64})"), "quantization.bits is missing");
  EXPECT_EQ(error(R"({"bits":4})"), "quantization.group_size is missing");
  EXPECT_EQ(error(R"({"bits":4,"group_size":64,"m":{"bits":8}})"), "quantization.m.group_size is missing");
  EXPECT_EQ(error(R"({"bits":7,"group_size":64})"),
            "quantization.bits: expected one of 2, 3, 4, 5, 6, 8, found 7");
  EXPECT_EQ(error(R"({"bits":4,"group_size":16})"),
            "quantization.group_size: expected one of 32, 64, 128, found 16");
  EXPECT_EQ(error("4"), "quantization: expected an object, found 4");
  EXPECT_EQ(testing::error_of(parse_quantization("[")), "expected a JSON object");
}

}  // namespace
}  // namespace tercet
