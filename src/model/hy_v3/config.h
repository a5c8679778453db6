// The sizes and constants of one Hy3 model, from its config.json. No key that decides a number is defaulted:
// published ports of this model disagree on such defaults.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/quantization.h"

namespace tercet::hy_v3 {

inline constexpr int64_t kHeadDim = 128;

enum class LayerKind : uint8_t { dense, sparse };

struct Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;  // without the MTP layer
  int64_t num_heads = 0;   // a multiple of num_kv_heads
  int64_t num_kv_heads = 0;
  int64_t intermediate_size = 0;      // of dense layers
  int64_t moe_intermediate_size = 0;  // of one expert
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t num_shared_experts = 0;  // 0: none
  int64_t max_positions = 0;
  int64_t mtp_layers = 0;         // 0 or 1: what the config promises; the checkpoint may lack it
  std::vector<LayerKind> layers;  // num_layers

  float rms_norm_eps = 0;
  double rope_theta = 0;
  float router_scaling = 0;
  bool route_norm = false;
  bool expert_bias = false;  // false: the checkpoint has none, all are 0
  bool tied_embeddings = false;

  std::vector<int32_t> bos_ids;  // empty where the config names none
  std::vector<int32_t> eos_ids;
  Quantization quantization;

  int64_t q_size() const { return num_heads * kHeadDim; }
  int64_t kv_size() const { return num_kv_heads * kHeadDim; }
  int64_t shared_intermediate_size() const { return num_shared_experts * moe_intermediate_size; }
};

/// Errors name the key, what was expected and what was found: absent keys (with all accepted spellings),
/// spellings that contradict each other, sizes out of bounds or that don't divide, and what this engine does
/// not compute: QK norm or sigmoid routing off, other RoPE types, activations or head sizes, attention bias.
Result<Config> parse_config(std::string_view config_json);

/// The text of a config.json from which parse_config() makes this configuration again.
std::string write_config(const Config& config);

}  // namespace tercet::hy_v3
