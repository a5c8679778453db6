#include "model/hy_v3/config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "weights/test_files.h"

namespace tercet::hy_v3 {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json tiny() {
  return json::parse(testing::read_file(std::string(TERCET_SOURCE_DIR) + "/models/hy3-tiny/config.json"));
}

Result<Config> parse(const json& config) { return parse_config(config.dump()); }

/// The error of the tiny configuration with some keys changed; `null` removes a key.
std::string error(const json& changes) {
  json config = tiny();
  config.merge_patch(changes);
  return testing::error_of(parse(config));
}

Config valid(const json& changes) {
  json config = tiny();
  config.merge_patch(changes);
  const auto parsed = parse(config);
  EXPECT_TRUE(parsed) << parsed.error().message;
  return parsed.value_or(Config{});
}

TEST(Config, TinyCheckpoint) {
  const Config c = valid(json::object());
  EXPECT_EQ(c.vocab_size, 4096);
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.num_layers, 6);
  EXPECT_EQ(c.num_heads, 8);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.intermediate_size, 1024);
  EXPECT_EQ(c.moe_intermediate_size, 128);
  EXPECT_EQ(c.num_experts, 32);
  EXPECT_EQ(c.experts_per_token, 4);
  EXPECT_EQ(c.num_shared_experts, 1);
  EXPECT_EQ(c.max_positions, 32768);
  EXPECT_EQ(c.mtp_layers, 1);
  ASSERT_EQ(c.layers.size(), 6);
  EXPECT_EQ(c.layers[0], LayerKind::dense);
  for (size_t i = 1; i < 6; ++i) EXPECT_EQ(c.layers[i], LayerKind::sparse);
  EXPECT_EQ(c.rms_norm_eps, 1e-5F);
  EXPECT_EQ(c.rope_theta, 11158840.0);
  EXPECT_EQ(c.router_scaling, 2.826F);
  EXPECT_TRUE(c.route_norm);
  EXPECT_TRUE(c.expert_bias);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.bos_ids, std::vector<int32_t>{4064});
  EXPECT_EQ(c.eos_ids, std::vector<int32_t>{4068});
  EXPECT_EQ(c.quantization.defaults, (QuantizationEntry{4, 64}));
  EXPECT_EQ(c.quantization.of("mtp.layer.mlp.router.gate"), (QuantizationEntry{8, 64}));
  EXPECT_EQ(c.quantization.modules.size(), 6);
  EXPECT_EQ(c.q_size(), 1024);
  EXPECT_EQ(c.kv_size(), 256);
  EXPECT_EQ(c.shared_intermediate_size(), 128);
}

TEST(Config, WhatDecidesNumbersIsNeverDefaulted) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "num_experts",
        "num_experts_per_tok", "num_shared_experts", "router_scaling_factor", "route_norm",
        "moe_router_enable_expert_bias", "tie_word_embeddings"}) {
    EXPECT_EQ(error({{key, nullptr}}), fmt::format("{} is missing", key));
  }
  EXPECT_EQ(error({{"model_type", nullptr}}), "model_type is missing (expected \"hy_v3\")");
  EXPECT_EQ(error({{"moe_intermediate_size", nullptr}, {"expert_hidden_dim", nullptr}}),
            "moe_intermediate_size (or expert_hidden_dim) is missing");
  EXPECT_EQ(error({{"first_k_dense_replace", nullptr}}),
            "first_k_dense_replace (or mlp_layer_types) is missing");
  EXPECT_EQ(error({{"rope_parameters", nullptr}}), "rope_parameters.rope_theta (or rope_theta) is missing");
  EXPECT_EQ(error({{"rope_parameters", {{"rope_theta", nullptr}}}}),
            "rope_parameters.rope_theta (or rope_theta) is missing");
}

TEST(Config, AllSpellings) {
  EXPECT_EQ(valid({{"moe_intermediate_size", nullptr}}).moe_intermediate_size, 128);
  EXPECT_EQ(valid({{"expert_hidden_dim", nullptr}}).moe_intermediate_size, 128);
  EXPECT_EQ(valid({{"rope_parameters", nullptr}, {"rope_theta", 5000}}).rope_theta, 5000);
  EXPECT_EQ(valid({{"rope_theta", 11158840}}).rope_theta, 11158840);
  EXPECT_EQ(valid({{"rope_scaling", {{"type", "default"}}}}).rope_theta, 11158840);
  const json types = {"dense", "sparse", "dense", "sparse", "sparse", "dense"};
  const Config mixed = valid({{"first_k_dense_replace", nullptr}, {"mlp_layer_types", types}});
  EXPECT_EQ(mixed.layers[0], LayerKind::dense);
  EXPECT_EQ(mixed.layers[1], LayerKind::sparse);
  EXPECT_EQ(mixed.layers[2], LayerKind::dense);
  EXPECT_EQ(mixed.layers[5], LayerKind::dense);
  EXPECT_EQ(
      valid({{"mlp_layer_types", {"dense", "sparse", "sparse", "sparse", "sparse", "sparse"}}}).layers.size(),
      6);
  EXPECT_EQ(valid({{"eos_token_id", {1, 2}}}).eos_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(valid({{"eos_token_id", nullptr}, {"bos_token_id", nullptr}}).eos_ids.empty());
  EXPECT_EQ(valid({{"num_nextn_predict_layers", nullptr}}).mtp_layers, 0);
  EXPECT_FALSE(valid({{"route_norm", false}}).route_norm);
  EXPECT_EQ(valid({{"num_shared_experts", 0}}).num_shared_experts, 0);
}

TEST(Config, KeysThatOnlyNameTheUsualMayBeAbsent) {
  valid({{"qk_norm", nullptr},
         {"moe_router_use_sigmoid", nullptr},
         {"hidden_act", nullptr},
         {"attention_bias", nullptr},
         {"enable_moe_fp32_combine", nullptr},
         {"enable_lm_head_fp32", nullptr},
         {"architectures", nullptr},
         {"unheard_of", {{"nested", {1, 2, 3}}}}});
}

TEST(Config, WhatIsFloat32HereAnywayIsIgnoredAndLogged) {
  set_log_level(LogLevel::info);
  ::testing::internal::CaptureStderr();
  valid({{"enable_moe_fp32_combine", true}, {"enable_lm_head_fp32", false}});
  const std::string log = ::testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::warn);
  EXPECT_THAT(log, HasSubstr("enable_moe_fp32_combine is true, ignored"));
  EXPECT_THAT(log, HasSubstr("enable_lm_head_fp32 is false, ignored"));
}

TEST(Config, ContradictionsAreErrors) {
  EXPECT_EQ(error({{"expert_hidden_dim", 256}}),
            "moe_intermediate_size 128 and expert_hidden_dim 256 disagree");
  EXPECT_EQ(error({{"rope_theta", 10000.5}}),
            "rope_parameters.rope_theta 11158840 and rope_theta 10000.5 disagree");
  EXPECT_EQ(
      error({{"mlp_layer_types", {"dense", "dense", "sparse", "sparse", "sparse", "sparse"}}}),
      "first_k_dense_replace 1 and mlp_layer_types [\"dense\",\"dense\",\"sparse\",\"sparse\",\"sparse\","
      "\"sparse\"] disagree");
  EXPECT_EQ(error({{"mlp_layer_types", {"dense", "sparse"}}}),
            "mlp_layer_types: expected a list of 6 entries (num_hidden_layers), found 2");
  EXPECT_EQ(error({{"mlp_layer_types", "dense"}}),
            "mlp_layer_types: expected a list of 6 entries (num_hidden_layers), found \"dense\"");
  EXPECT_EQ(error({{"mlp_layer_types", {"dense", "moe", "sparse", "sparse", "sparse", "sparse"}}}),
            "mlp_layer_types: expected \"dense\" or \"sparse\", found \"moe\"");
  EXPECT_EQ(error({{"quantization", {{"bits", 8}}}}), "quantization and quantization_config disagree");
}

TEST(Config, OtherModelsAreRefusedByName) {
  EXPECT_EQ(error({{"model_type", "hunyuan_v1_moe"}}),
            "model_type: expected \"hy_v3\", found \"hunyuan_v1_moe\"");
  EXPECT_EQ(error({{"qk_norm", false}}), "qk_norm: only true is computed here, found false");
  EXPECT_EQ(error({{"moe_router_use_sigmoid", false}}),
            "moe_router_use_sigmoid: only true is computed here, found false");
  EXPECT_EQ(error({{"hidden_act", "gelu"}}), "hidden_act: only \"silu\" is computed here, found \"gelu\"");
  EXPECT_EQ(error({{"attention_bias", true}}), "attention_bias: only false is computed here, found true");
  EXPECT_EQ(error({{"mlp_bias", true}}), "mlp_bias: only false is computed here, found true");
  EXPECT_EQ(error({{"head_dim", 64}}), "head_dim: only 128 is computed here, found 64");
  EXPECT_EQ(error({{"rope_parameters", {{"rope_type", "yarn"}}}}),
            "rope_parameters.rope_type: only \"default\" is computed here, found \"yarn\"");
  EXPECT_EQ(error({{"rope_scaling", {{"type", "dynamic"}}}}),
            "rope_scaling.type: only \"default\" is computed here, found \"dynamic\"");
  EXPECT_EQ(error({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
            "rope_parameters.partial_rotary_factor: only 1 is computed here, found 0.5");
  EXPECT_EQ(error({{"quantization_config", {{"quant_method", "fp8"}}}}),
            "quantization_config.quant_method is \"fp8\": such weights are not read yet");
}

TEST(Config, SizesThatDoNotFit) {
  EXPECT_EQ(error({{"num_key_value_heads", 3}}),
            "num_attention_heads 8 is no multiple of num_key_value_heads 3");
  EXPECT_EQ(error({{"num_key_value_heads", 16}}),
            "num_attention_heads 8 is no multiple of num_key_value_heads 16");
  EXPECT_EQ(error({{"num_experts_per_tok", 33}}),
            "num_experts_per_tok: expected a whole number from 1 to 32, found 33");
  EXPECT_EQ(error({{"first_k_dense_replace", 7}}),
            "first_k_dense_replace: expected a whole number from 0 to 6, found 7");
  EXPECT_EQ(error({{"hidden_size", 288}}),
            "hidden_size: expected a multiple of the group size 64, found 288");
  EXPECT_EQ(error({{"intermediate_size", 1000}}),
            "intermediate_size: expected a multiple of the group size 64, found 1000");
  EXPECT_EQ(error({{"moe_intermediate_size", 96}, {"expert_hidden_dim", 96}}),
            "moe_intermediate_size: expected a multiple of the group size 64, found 96");
  const json groups_of_32 = {{"quantization", {{"bits", 4}, {"group_size", 32}}},
                             {"quantization_config", nullptr}};
  json config = groups_of_32;
  config["hidden_size"] = 288;
  EXPECT_EQ(valid(config).hidden_size, 288);
  EXPECT_EQ(error({{"quantization", nullptr}, {"quantization_config", nullptr}, {"hidden_size", 288}}),
            "hidden_size: expected a multiple of the group size 64, found 288");
  EXPECT_EQ(error({{"eos_token_id", {4068, 4096}}}),
            "eos_token_id: expected a whole number from 0 to 4095, found 4096");
  EXPECT_EQ(error({{"bos_token_id", -1}}), "bos_token_id: expected a whole number from 0 to 4095, found -1");
  EXPECT_EQ(error({{"num_nextn_predict_layers", 2}}),
            "num_nextn_predict_layers: expected a whole number from 0 to 1, found 2");
}

TEST(Config, AbsurdValues) {
  EXPECT_EQ(error({{"hidden_size", 0}}), "hidden_size: expected a whole number from 1 to 131072, found 0");
  EXPECT_EQ(error({{"hidden_size", uint64_t{1} << 63}}),
            "hidden_size: expected a whole number from 1 to 131072, found 9223372036854775808");
  EXPECT_EQ(error({{"hidden_size", 256.0}}),
            "hidden_size: expected a whole number from 1 to 131072, found 256.0");
  EXPECT_EQ(error({{"vocab_size", -4}}), "vocab_size: expected a whole number from 1 to 4194304, found -4");
  EXPECT_EQ(error({{"num_hidden_layers", "6"}}),
            "num_hidden_layers: expected a whole number from 1 to 1000, found \"6\"");
  EXPECT_EQ(error({{"num_experts", 1}}), "num_experts: expected a whole number from 2 to 4096, found 1");
  EXPECT_EQ(error({{"max_position_embeddings", 1 << 25}}),
            "max_position_embeddings: expected a whole number from 1 to 16777216, found 33554432");
  EXPECT_EQ(error({{"rms_norm_eps", 0}}), "rms_norm_eps: expected a number from 1e-20 to 1, found 0");
  EXPECT_EQ(error({{"router_scaling_factor", -1.5}}),
            "router_scaling_factor: expected a number from 1e-06 to 1000000, found -1.5");
  EXPECT_EQ(error({{"rope_parameters", {{"rope_theta", 0.5}}}}),
            "rope_parameters.rope_theta: expected a number from 1 to 1000000000000000, found 0.5");
  EXPECT_EQ(error({{"rope_parameters", 3}}), "rope_parameters: expected an object, found 3");
  EXPECT_EQ(error({{"route_norm", 1}}), "route_norm: expected true or false, found 1");
  EXPECT_EQ(testing::error_of(parse_config("[]")), "expected a JSON object");
  EXPECT_EQ(testing::error_of(parse_config("{\"model_type\"")), "expected a JSON object");
}

TEST(Config, WritingAndParsingAreInverse) {
  json changes = {{"eos_token_id", {1, 2}}, {"num_shared_experts", 2}, {"tie_word_embeddings", true}};
  for (const Config& c : {valid(json::object()), valid(changes),
                          valid({{"quantization", nullptr}, {"quantization_config", nullptr}})}) {
    const auto again = parse_config(write_config(c));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(write_config(*again), write_config(c));
    EXPECT_EQ(again->rms_norm_eps, c.rms_norm_eps);
    EXPECT_EQ(again->rope_theta, c.rope_theta);
    EXPECT_EQ(again->router_scaling, c.router_scaling);
    EXPECT_EQ(again->layers, c.layers);
    EXPECT_EQ(again->eos_ids, c.eos_ids);
    EXPECT_EQ(again->quantization.defaults, c.quantization.defaults);
    EXPECT_EQ(again->quantization.modules, c.quantization.modules);
    EXPECT_EQ(again->num_shared_experts, c.num_shared_experts);
    EXPECT_EQ(again->tied_embeddings, c.tied_embeddings);
  }
}

}  // namespace
}  // namespace tercet::hy_v3
