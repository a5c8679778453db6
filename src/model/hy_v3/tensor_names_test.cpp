#include "model/hy_v3/tensor_names.h"

#include <gmock/gmock.h>

#include <functional>

#include "model/hy_v3/bf16_checkpoint.h"
#include "model/hy_v3/experts.h"
#include "model/hy_v3/model_parts.h"
#include "weights/checkpoint.h"
#include "weights/matrix.h"
#include "weights/test_files.h"

namespace tercet::hy_v3 {
namespace {

using ::testing::HasSubstr;

/// The original's tensors under other names; a tensor renamed to "" is left out.
std::shared_ptr<const TensorSource> renamed(const std::shared_ptr<const TensorSource>& original,
                                            const std::function<std::string(std::string)>& rename) {
  std::vector<GeneratedTensor> tensors;
  for (const TensorInfo& info : original->tensors()) {
    GeneratedTensor tensor;
    tensor.info = info;
    tensor.info.name = rename(info.name);
    tensor.make = [original, &info] { return original->read(info); };
    if (!tensor.info.name.empty()) tensors.push_back(std::move(tensor));
  }
  return make_generated_source(std::move(tensors), "renamed");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

class TensorNames : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_checkpoint(std::string(TERCET_SOURCE_DIR) + "/models/hy3-tiny");
    ASSERT_TRUE(opened) << opened.error().message;
    tiny_ = std::move(*opened);
    config_ = *parse_config(tiny_.config_json);
  }

  /// A hash of every part's values in the model's order: equal for checkpoints that hold the same model.
  uint64_t digest(const Config& config, const TensorSource& source) {
    const auto names = resolve_names(config, source);
    if (!names) {
      ADD_FAILURE() << names.error().message;
      return 0;
    }
    EXPECT_TRUE(names->unused.empty()) << names->unused[0];
    const ModelParts parts = list_parts(config, *names);
    digest_ = 0;
    for (const MatrixPart& part : parts.matrices) {
      const auto matrix = load_matrix(source, part.name, part.n, part.k, config.quantization, pool_);
      if (!matrix) ADD_FAILURE() << matrix.error().message;
      if (matrix) add(*matrix);
    }
    for (const VectorPart& part : parts.vectors) {
      const auto vector = load_vector(source, part.name, part.n);
      if (!vector) ADD_FAILURE() << vector.error().message;
      if (vector) add(std::as_bytes(std::span(*vector)));
    }
    for (const ExpertNames& layer : parts.experts) {
      const auto experts = load_experts(source, config, layer, pool_);
      if (!experts) ADD_FAILURE() << experts.error().message;
      if (!experts) continue;
      for (const auto* matrices : {&experts->gate, &experts->up, &experts->down}) {
        EXPECT_EQ(static_cast<int64_t>(matrices->size()), config.num_experts);
        for (const MatrixData& matrix : *matrices) add(matrix);
      }
    }
    return digest_;
  }

  Checkpoint tiny_;
  Config config_;
  ThreadPool pool_{2};

 private:
  void add(std::span<const std::byte> bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    digest_ = digest_ * 0x100000001b3 + std::hash<std::string_view>{}(text);
  }
  void add(const MatrixData& m) {
    add({m.values, static_cast<size_t>(m.n * m.value_row_bytes())});
    if (!m.affine()) return;
    add({m.scales, static_cast<size_t>(m.n * m.scale_row_bytes())});
    add({m.biases, static_cast<size_t>(m.n * m.scale_row_bytes())});
  }

  uint64_t digest_ = 0;
};

TEST_F(TensorNames, Mlx) {
  const auto names = resolve_names(config_, *tiny_.tensors);
  ASSERT_TRUE(names) << names.error().message;
  EXPECT_TRUE(names->unused.empty());
  EXPECT_EQ(names->embed, "model.embed_tokens");
  EXPECT_EQ(names->norm, "model.norm.weight");
  EXPECT_EQ(names->lm_head, "lm_head");
  ASSERT_EQ(names->layers.size(), 6);
  ASSERT_TRUE(names->layers[0].dense);
  EXPECT_FALSE(names->layers[0].moe);
  EXPECT_EQ(names->layers[0].dense->down, "model.layers.0.mlp.down_proj");
  ASSERT_TRUE(names->layers[5].moe);
  EXPECT_EQ(names->layers[5].k_norm, "model.layers.5.self_attn.k_norm.weight");
  EXPECT_EQ(names->layers[5].moe->router, "model.layers.5.mlp.router.gate");
  EXPECT_EQ(names->layers[5].moe->expert_bias, "model.layers.5.mlp.router.expert_bias");
  EXPECT_EQ(names->layers[5].moe->experts.up,
            std::vector<std::string>{"model.layers.5.mlp.switch_mlp.up_proj"});
  EXPECT_EQ(names->layers[5].moe->shared->gate, "model.layers.5.mlp.shared_mlp.gate_proj");
  ASSERT_TRUE(names->mtp);
  EXPECT_EQ(names->mtp->eh_proj, "mtp.eh_proj");
  EXPECT_EQ(names->mtp->layer.q, "mtp.layer.self_attn.q_proj");
}

TEST_F(TensorNames, SpelledNamesAreTheResolvedOnes) {
  const ModelNames spelled = spell_names(config_, Spelling::mlx);
  const auto resolved = resolve_names(config_, *tiny_.tensors);
  ASSERT_TRUE(resolved);
  const ModelParts a = list_parts(config_, spelled);
  const ModelParts b = list_parts(config_, *resolved);
  ASSERT_EQ(a.matrices.size(), b.matrices.size());
  for (size_t i = 0; i < a.matrices.size(); ++i) EXPECT_EQ(a.matrices[i].name, b.matrices[i].name);
  ASSERT_EQ(a.vectors.size(), b.vectors.size());
  for (size_t i = 0; i < a.vectors.size(); ++i) EXPECT_EQ(a.vectors[i].name, b.vectors[i].name);
  ASSERT_EQ(a.experts.size(), 6);
  EXPECT_EQ(a.experts[5].down, b.experts[5].down);
}

TEST_F(TensorNames, HuggingFaceNames) {
  const ModelNames names = spell_names(config_, Spelling::hugging_face);
  EXPECT_EQ(names.layers[1].moe->router, "model.layers.1.mlp.router.gate");
  EXPECT_EQ(names.layers[1].moe->expert_bias, "model.layers.1.mlp.expert_bias");
  ASSERT_EQ(names.layers[1].moe->experts.gate.size(), 32);
  EXPECT_EQ(names.layers[1].moe->experts.gate[31], "model.layers.1.mlp.experts.31.gate_proj");
  EXPECT_EQ(names.mtp->enorm, "model.layers.6.enorm.weight");
  EXPECT_EQ(names.mtp->final_norm, "model.layers.6.final_layernorm.weight");
  EXPECT_EQ(names.mtp->layer.moe->shared->down, "model.layers.6.mlp.shared_mlp.down_proj");
  EXPECT_EQ(names.mtp->layer.input_norm, "model.layers.6.input_layernorm.weight");
}

TEST_F(TensorNames, TransformersNames) {
  const ModelNames names = spell_names(config_, Spelling::transformers);
  EXPECT_EQ(names.layers[1].moe->router, "model.layers.1.mlp.gate");
  EXPECT_EQ(names.layers[1].moe->expert_bias, "model.layers.1.mlp.e_score_correction_bias");
  EXPECT_TRUE(names.layers[1].moe->experts.gate.empty());
  EXPECT_EQ(names.layers[1].moe->experts.gate_up,
            std::vector<std::string>{"model.layers.1.mlp.experts.gate_up_proj"});
  EXPECT_EQ(names.layers[1].moe->experts.down,
            std::vector<std::string>{"model.layers.1.mlp.experts.down_proj"});
  EXPECT_EQ(names.layers[1].moe->shared->up, "model.layers.1.mlp.shared_experts.up_proj");
}

TEST_F(TensorNames, EverySpellingHoldsTheSameModel) {
  const auto twin = to_bf16(tiny_, Spelling::hugging_face, 2);
  ASSERT_TRUE(twin) << twin.error().message;
  const Config config = *parse_config(twin->config_json);
  EXPECT_EQ(config.quantization.defaults.bits, 0);
  const uint64_t expected = digest(config, *twin->tensors);

  for (const Spelling spelling : {Spelling::transformers, Spelling::mlx}) {
    const auto other = to_bf16(tiny_, spelling, 1);
    ASSERT_TRUE(other);
    EXPECT_EQ(digest(config, *other->tensors), expected);
  }
  // Mixtures that ports have made: stacks in `experts`, the MTP layer last with stacked experts.
  const auto mlx = to_bf16(tiny_, Spelling::mlx, 1);
  const auto in_experts = renamed(mlx->tensors, [](const std::string& name) {
    return replaced(name, "mlp.switch_mlp.", "mlp.experts.");
  });
  EXPECT_EQ(digest(config, *in_experts), expected);
  const auto mtp_last = renamed(mlx->tensors, [](const std::string& name) {
    if (name.starts_with("mtp.layer.")) return "model.layers.6." + name.substr(10);
    return name.starts_with("mtp.") ? "model.layers.6." + name.substr(4) : name;
  });
  EXPECT_EQ(digest(config, *mtp_last), expected);
  const auto bare_stacks = renamed(mlx->tensors, [](const std::string& name) {
    return name.find("switch_mlp") == std::string::npos ? name : name.substr(0, name.size() - 7);
  });
  EXPECT_EQ(digest(config, *bare_stacks), expected);
}

TEST_F(TensorNames, QuantisedExpertsInExpertsAndBiasBesideThem) {
  const uint64_t expected = digest(config_, *tiny_.tensors);
  const auto ported = renamed(tiny_.tensors, [](const std::string& name) {
    return replaced(replaced(name, "mlp.switch_mlp.", "mlp.experts."), "mlp.router.expert_bias",
                    "mlp.expert_bias");
  });
  EXPECT_EQ(digest(config_, *ported), expected);
}

TEST_F(TensorNames, AnAbsentMtpLayerIsNoError) {
  const auto without =
      renamed(tiny_.tensors, [](const std::string& name) { return name.starts_with("mtp.") ? "" : name; });
  const auto names = resolve_names(config_, *without);
  ASSERT_TRUE(names) << names.error().message;
  EXPECT_FALSE(names->mtp);
  EXPECT_TRUE(names->unused.empty());
  EXPECT_EQ(list_parts(config_, *names).experts.size(), 5);

  const auto twin = to_bf16({tiny_.config_json, without}, Spelling::hugging_face, 1);
  ASSERT_TRUE(twin) << twin.error().message;
  EXPECT_EQ(twin->tensors->find("model.layers.6.enorm.weight"), nullptr);
  EXPECT_NE(twin->tensors->find("model.layers.5.mlp.experts.31.up_proj.weight"), nullptr);
}

TEST_F(TensorNames, AnMtpLayerThatTheConfigDoesNotNameIsUnused) {
  Config config = config_;
  config.mtp_layers = 0;
  const auto names = resolve_names(config, *tiny_.tensors);
  ASSERT_TRUE(names);
  EXPECT_FALSE(names->mtp);
  EXPECT_EQ(names->unused.size(), 44);
  for (const std::string& name : names->unused) EXPECT_TRUE(name.starts_with("mtp.")) << name;
}

TEST_F(TensorNames, UnusedTensorsAreNamed) {
  const auto extended = renamed(tiny_.tensors, [](const std::string& name) {
    return name == "lm_head.weight" || name == "lm_head.scales" || name == "lm_head.biases" ? "vision." + name
                                                                                            : name;
  });
  Config tied = config_;
  tied.tied_embeddings = true;
  ::testing::internal::CaptureStderr();
  const auto names = resolve_names(tied, *extended);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("3 of the checkpoint's tensors are no part of the model and not used: vision.lm_head.biases, "
                "vision.lm_head.scales, vision.lm_head.weight"));
  ASSERT_TRUE(names) << names.error().message;
  EXPECT_TRUE(names->lm_head.empty());
  EXPECT_EQ(names->unused, (std::vector<std::string>{"vision.lm_head.biases", "vision.lm_head.scales",
                                                     "vision.lm_head.weight"}));
}

TEST_F(TensorNames, MissingTensorsAreListed) {
  const auto lacking = [&](const std::string& part) {
    const auto source = renamed(tiny_.tensors, [&](const std::string& name) {
      return name.find(part) == std::string::npos ? name : "";
    });
    return testing::error_of(resolve_names(config_, *source));
  };
  EXPECT_EQ(lacking("lm_head"), "1 of the model's tensors are missing: lm_head.weight");
  EXPECT_EQ(lacking("model.norm"), "1 of the model's tensors are missing: model.norm.weight");
  EXPECT_EQ(lacking("layers.0.mlp"),
            "3 of the model's tensors are missing: model.layers.0.mlp.gate_proj.weight, "
            "model.layers.0.mlp.up_proj.weight, model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(lacking("mtp.enorm"), "1 of the model's tensors are missing: mtp.enorm.weight");
  EXPECT_EQ(lacking("layers.2.mlp.router.expert_bias"),
            "1 of the model's tensors are missing: model.layers.2.mlp.expert_bias");
  EXPECT_THAT(
      lacking("layers.3.mlp.switch_mlp"),
      HasSubstr("96 of the model's tensors are missing: model.layers.3.mlp.experts.0.gate_proj.weight, "));
  EXPECT_THAT(lacking("layers.3.mlp.switch_mlp"),
              HasSubstr("model.layers.3.mlp.experts.3.gate_proj.weight and 86 more"));
}

TEST_F(TensorNames, WhatTheConfigHasNotIsNotAskedFor) {
  Config config = config_;
  config.expert_bias = false;
  config.num_shared_experts = 0;
  const auto names = resolve_names(config, *tiny_.tensors);
  ASSERT_TRUE(names) << names.error().message;
  EXPECT_TRUE(names->layers[1].moe->expert_bias.empty());
  EXPECT_FALSE(names->layers[1].moe->shared);
  EXPECT_EQ(names->unused.size(), 6 * (1 + 9));
}

}  // namespace
}  // namespace tercet::hy_v3
