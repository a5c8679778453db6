#include "model/hy_v3/synthetic_model.h"

#include <gtest/gtest.h>

#include "model/hy_v3/experts.h"
#include "model/hy_v3/model_parts.h"
#include "weights/matrix.h"
#include "weights/test_files.h"

namespace tercet::hy_v3 {
namespace {

/// Two layers, one of each kind.
Config small() {
  Config c;
  c.vocab_size = 320;
  c.hidden_size = 128;
  c.num_layers = 2;
  c.layers = {LayerKind::dense, LayerKind::sparse};
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.intermediate_size = 256;
  c.moe_intermediate_size = 128;
  c.num_experts = 4;
  c.experts_per_token = 2;
  c.num_shared_experts = 1;
  c.max_positions = 1024;
  c.mtp_layers = 1;
  c.rms_norm_eps = 1e-5F;
  c.rope_theta = 10000;
  c.router_scaling = 1;
  c.route_norm = true;
  c.expert_bias = true;
  c.quantization.defaults = {4, 64};
  return c;
}

/// Loads every part as an engine would.
void expect_loadable(const Checkpoint& checkpoint) {
  const auto config = parse_config(checkpoint.config_json);
  ASSERT_TRUE(config) << config.error().message;
  const auto names = resolve_names(*config, *checkpoint.tensors);
  ASSERT_TRUE(names) << names.error().message;
  EXPECT_TRUE(names->unused.empty());
  EXPECT_EQ(names->mtp.has_value(), config->mtp_layers == 1);
  ThreadPool pool(1);
  const ModelParts parts = list_parts(*config, *names);
  for (const MatrixPart& part : parts.matrices) {
    const auto m = load_matrix(*checkpoint.tensors, part.name, part.n, part.k, config->quantization, pool);
    ASSERT_TRUE(m) << m.error().message;
    EXPECT_EQ(m->bits, config->quantization.of(part.name).bits);
  }
  for (const VectorPart& part : parts.vectors) {
    const auto v = load_vector(*checkpoint.tensors, part.name, part.n);
    ASSERT_TRUE(v) << v.error().message;
  }
  for (const ExpertNames& layer : parts.experts) {
    const auto experts = load_experts(*checkpoint.tensors, *config, layer, pool);
    ASSERT_TRUE(experts) << experts.error().message;
    EXPECT_EQ(static_cast<int64_t>(experts->up.size()), config->num_experts);
  }
}

TEST(SyntheticModel, EveryFeatureLoads) {
  for (const Spelling spelling : {Spelling::mlx, Spelling::hugging_face, Spelling::transformers}) {
    for (const int bits : {0, 2, 3, 4, 5, 6, 8}) {
      for (const int group : {32, 64, 128}) {
        Config c = small();
        c.quantization.defaults = {bits, group};
        expect_loadable(make_synthetic_model(c, {.seed = 1, .spelling = spelling}, 1));
      }
    }
  }
  Config c = small();
  c.num_shared_experts = 0;
  c.mtp_layers = 0;
  c.tied_embeddings = true;
  c.expert_bias = false;
  c.quantization.modules["model.layers.1.mlp.router.gate"] = {8, 32};
  c.quantization.modules["model.embed_tokens"] = {};
  const Checkpoint checkpoint = make_synthetic_model(c, {}, 1);
  expect_loadable(checkpoint);
  EXPECT_EQ(checkpoint.tensors->find("lm_head.weight"), nullptr);
  EXPECT_EQ(checkpoint.tensors->find("model.embed_tokens.weight")->dtype, DType::bf16);
  EXPECT_EQ(checkpoint.tensors->find("model.layers.1.mlp.router.gate.weight")->shape,
            (std::vector<int64_t>{4, 32}));
}

TEST(SyntheticModel, TiedExpertsTie) {
  const Checkpoint checkpoint = make_synthetic_model(small(), {.tie_experts = true}, 1);
  const auto bias = load_vector(*checkpoint.tensors, "model.layers.1.mlp.router.expert_bias", 4);
  ASSERT_TRUE(bias);
  EXPECT_EQ(*bias, std::vector<float>(4, 0x1p21F));
  EXPECT_EQ((*bias)[0] + 0.6F, (*bias)[0] + 0.4F);
  EXPECT_NE((*bias)[0] + 0.9F, (*bias)[0] + 0.6F);
}

TEST(SyntheticModel, PublishedShapes) {
  const auto hy3 = parse_synthetic("synthetic:hy3", 0, 1);
  ASSERT_TRUE(hy3) << hy3.error().message;
  int64_t bytes = 0;
  for (const TensorInfo& tensor : hy3->tensors->tensors()) bytes += tensor.bytes();
  EXPECT_NEAR(static_cast<double>(bytes), 166e9, 3e9);  // as published 4-bit conversions, with the MTP layer
  EXPECT_EQ(hy3->tensors->find("model.layers.79.mlp.switch_mlp.down_proj.weight")->shape,
            (std::vector<int64_t>{192, 4096, 192}));
  EXPECT_EQ(hy3->tensors->find("mtp.layer.mlp.router.gate.weight")->shape, (std::vector<int64_t>{192, 1024}));

  const auto mt2 = parse_synthetic("synthetic:hy-mt2-30b", 0, 1);
  ASSERT_TRUE(mt2) << mt2.error().message;
  bytes = 0;
  for (const TensorInfo& tensor : mt2->tensors->tensors()) bytes += tensor.bytes();
  EXPECT_NEAR(static_cast<double>(bytes), 17e9, 0.3e9);
  EXPECT_EQ(mt2->tensors->find("mtp.enorm.weight"), nullptr);
  for (const Checkpoint* checkpoint : {&*hy3, &*mt2}) {
    const auto config = parse_config(checkpoint->config_json);
    ASSERT_TRUE(config) << config.error().message;
    const auto names = resolve_names(*config, *checkpoint->tensors);
    ASSERT_TRUE(names) << names.error().message;
    EXPECT_TRUE(names->unused.empty());
  }
}

TEST(SyntheticModel, FewerLayersAreTheFirstOnes) {
  const auto two = parse_synthetic("synthetic:hy-mt2-30b:2", 5, 1);
  ASSERT_TRUE(two) << two.error().message;
  const Config config = *parse_config(two->config_json);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.layers, (std::vector<LayerKind>{LayerKind::dense, LayerKind::sparse}));
  const auto three = parse_synthetic("synthetic:hy-mt2-30b:3", 5, 1);
  const std::string name = "model.layers.1.self_attn.k_proj.scales";
  EXPECT_EQ(testing::bytes_of(*two->tensors, name), testing::bytes_of(*three->tensors, name));
  const auto other_seed = parse_synthetic("synthetic:hy-mt2-30b:2", 6, 1);
  EXPECT_NE(testing::bytes_of(*two->tensors, name), testing::bytes_of(*other_seed->tensors, name));
}

TEST(SyntheticModel, NamesThatAreNone) {
  EXPECT_TRUE(is_synthetic("synthetic:hy3"));
  EXPECT_FALSE(is_synthetic("models/hy3-tiny"));
  for (const char* name : {"synthetic:", "synthetic:hy4", "hy3", ""}) {
    EXPECT_EQ(testing::error_of(parse_synthetic(name, 0, 1)),
              fmt::format("{}: expected synthetic:hy3[:LAYERS] or synthetic:hy-mt2-30b[:LAYERS]", name));
  }
  for (const char* layers : {"0", "81", "", "4x", "-1", "99999999999999999999"}) {
    EXPECT_EQ(testing::error_of(parse_synthetic(fmt::format("synthetic:hy3:{}", layers), 0, 1)),
              fmt::format("synthetic:hy3:{}: expected 1 to 80 layers, found \"{}\"", layers, layers));
  }
}

}  // namespace
}  // namespace tercet::hy_v3
