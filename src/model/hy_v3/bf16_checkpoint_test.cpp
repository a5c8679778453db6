#include "model/hy_v3/bf16_checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "model/hy_v3/config.h"
#include "model/hy_v3/synthetic_model.h"
#include "tensor/unpack.h"
#include "weights/checkpoint_writer.h"
#include "weights/test_files.h"

namespace tercet::hy_v3 {
namespace {

Checkpoint tiny() {
  auto opened = open_checkpoint(std::string(TERCET_SOURCE_DIR) + "/models/hy3-tiny");
  EXPECT_TRUE(opened) << opened.error().message;
  return opened.value_or(Checkpoint{});
}

template <class T>
std::vector<T> values(const TensorSource& source, const std::string& name) {
  const std::string bytes = testing::bytes_of(source, name);
  std::vector<T> result(bytes.size() / sizeof(T));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

/// Matrix `index` of a stack of `count`, by the format's definition.
std::vector<uint16_t> dequantised(const TensorSource& source, const std::string& name, int bits,
                                  int64_t index, int64_t count) {
  const std::string packed = testing::bytes_of(source, name + ".weight");
  const auto scales = values<uint16_t>(source, name + ".scales");
  const auto biases = values<uint16_t>(source, name + ".biases");
  const auto all = static_cast<int64_t>(packed.size()) * 8 / bits;
  std::vector<uint8_t> q(static_cast<size_t>(all));
  unpack_q(reinterpret_cast<const std::byte*>(packed.data()), bits, all, q.data());
  std::vector<uint16_t> result;
  for (int64_t i = index * all / count; i < (index + 1) * all / count; ++i) {
    const auto group = static_cast<size_t>(i / 64);
    const auto scale = static_cast<double>(bf16_to_float(scales[group]));
    const auto bias = static_cast<double>(bf16_to_float(biases[group]));
    result.push_back(float_to_bf16(static_cast<float>(scale * q[static_cast<size_t>(i)] + bias)));
  }
  return result;
}

TEST(Bf16Checkpoint, HoldsTheDequantisedWeights) {
  const Checkpoint original = tiny();
  const TensorSource& from = *original.tensors;
  const auto twin = to_bf16(original, Spelling::hugging_face, 2);
  ASSERT_TRUE(twin) << twin.error().message;
  const TensorSource& to = *twin->tensors;

  EXPECT_EQ(values<uint16_t>(to, "lm_head.weight"), dequantised(from, "lm_head", 4, 0, 1));
  EXPECT_EQ(values<uint16_t>(to, "model.layers.2.mlp.router.gate.weight"),
            dequantised(from, "model.layers.2.mlp.router.gate", 8, 0, 1));
  EXPECT_EQ(values<uint16_t>(to, "model.layers.5.mlp.experts.31.down_proj.weight"),
            dequantised(from, "model.layers.5.mlp.switch_mlp.down_proj", 4, 31, 32));
  EXPECT_EQ(values<uint16_t>(to, "model.layers.6.mlp.experts.0.gate_proj.weight"),
            dequantised(from, "mtp.layer.mlp.switch_mlp.gate_proj", 4, 0, 32));
  EXPECT_EQ(values<uint16_t>(to, "model.layers.6.eh_proj.weight"), dequantised(from, "mtp.eh_proj", 4, 0, 1));
  EXPECT_EQ(to.find("model.layers.6.eh_proj.weight")->shape, (std::vector<int64_t>{256, 512}));
  EXPECT_EQ(to.find("model.layers.6.eh_proj.weight")->dtype, DType::bf16);
  EXPECT_EQ(values<float>(to, "model.layers.4.mlp.expert_bias"),
            values<float>(from, "model.layers.4.mlp.router.expert_bias"));
  EXPECT_EQ(to.find("model.layers.4.mlp.expert_bias")->dtype, DType::f32);
  EXPECT_EQ(values<uint16_t>(to, "model.layers.6.hnorm.weight"), values<uint16_t>(from, "mtp.hnorm.weight"));
  // 3 of the model, 11 of the dense layer, 13 and 96 experts' of each sparse one, 4 of the MTP layer.
  EXPECT_EQ(to.tensors().size(), 3 + 11 + 6 * (13 + 96) + 4);
  EXPECT_EQ(nlohmann::json::parse(twin->config_json).count("quantization"), 0);
  EXPECT_EQ(nlohmann::json::parse(twin->config_json).count("quantization_config"), 0);
}

TEST(Bf16Checkpoint, FusedStacksHaveTheGatesRowsFirst) {
  const Checkpoint original = tiny();
  const auto twin = to_bf16(original, Spelling::transformers, 1);
  ASSERT_TRUE(twin) << twin.error().message;
  const auto fused = values<uint16_t>(*twin->tensors, "model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(twin->tensors->find("model.layers.1.mlp.experts.gate_up_proj")->shape,
            (std::vector<int64_t>{32, 256, 256}));
  const auto gate = dequantised(*original.tensors, "model.layers.1.mlp.switch_mlp.gate_proj", 4, 7, 32);
  const auto up = dequantised(*original.tensors, "model.layers.1.mlp.switch_mlp.up_proj", 4, 7, 32);
  EXPECT_TRUE(std::equal(gate.begin(), gate.end(), fused.begin() + 7 * 65536));
  EXPECT_TRUE(std::equal(up.begin(), up.end(), fused.begin() + 7 * 65536 + 32768));
}

TEST(Bf16Checkpoint, WrittenInShardsAndReadAgain) {
  const testing::TempDir dir;
  const auto twin = to_bf16(tiny(), Spelling::hugging_face, 2);
  ASSERT_TRUE(twin);
  ASSERT_TRUE(write_checkpoint(dir.path(), *twin, 4));
  EXPECT_TRUE(std::filesystem::exists(dir / "model-00004-of-00004.safetensors"));
  const auto read = open_checkpoint(dir.path());
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->tensors->tensors().size(), twin->tensors->tensors().size());
  for (const TensorInfo& tensor : twin->tensors->tensors()) {
    EXPECT_EQ(testing::bytes_of(*read->tensors, tensor.name), testing::bytes_of(*twin->tensors, tensor.name));
  }
}

TEST(Bf16Checkpoint, ATwinIsItsOwnTwin) {
  const auto twin = to_bf16(tiny(), Spelling::transformers, 1);
  ASSERT_TRUE(twin);
  const auto again = to_bf16(*twin, Spelling::transformers, 1);
  ASSERT_TRUE(again) << again.error().message;
  for (const TensorInfo& tensor : twin->tensors->tensors()) {
    EXPECT_EQ(testing::bytes_of(*again->tensors, tensor.name),
              testing::bytes_of(*twin->tensors, tensor.name));
  }
}

TEST(Bf16Checkpoint, ErrorsOfTheOriginalComeThrough) {
  Checkpoint broken = tiny();
  broken.config_json = "{}";
  EXPECT_EQ(testing::error_of(to_bf16(broken, Spelling::mlx, 1)),
            "model_type is missing (expected \"hy_v3\")");
}

}  // namespace
}  // namespace tercet::hy_v3
