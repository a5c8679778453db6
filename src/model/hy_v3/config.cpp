#include "model/hy_v3/config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/log.h"

namespace tercet::hy_v3 {
namespace {

using nlohmann::json;

/// A key's value, nullptr where it is absent or null.
const json* find(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<int64_t> whole(const json& value, std::string_view key, int64_t least, int64_t most) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) ||
      value.get<int64_t>() < least || value.get<int64_t>() > most) {
    return fail("{}: expected a whole number from {} to {}, found {}", key, least, most, value.dump());
  }
  return value.get<int64_t>();
}

Result<int64_t> require_whole(const json& object, const char* key, int64_t least, int64_t most) {
  const json* value = find(object, key);
  if (value == nullptr) return fail("{} is missing", key);
  return whole(*value, key, least, most);
}

Result<double> number(const json& value, std::string_view key, double least, double most) {
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most)) {
    return fail("{}: expected a number from {} to {}, found {}", key, least, most, value.dump());
  }
  return value.get<double>();
}

Result<float> require_float(const json& object, const char* key, double least, double most) {
  const json* value = find(object, key);
  if (value == nullptr) return fail("{} is missing", key);
  TERCET_TRY(const double parsed, number(*value, key, least, most));
  return static_cast<float>(parsed);
}

Result<bool> require_bool(const json& object, const char* key) {
  const json* value = find(object, key);
  if (value == nullptr) return fail("{} is missing", key);
  if (!value->is_boolean()) return fail("{}: expected true or false, found {}", key, value->dump());
  return value->get<bool>();
}

/// Keys with which a config asks for another model than the one computed here. Absent is as expected: the
/// architecture has no choice there.
Result<void> refuse_variants(const json& config) {
  struct Fixed {
    const char* key;
    json expected;
  };
  static const Fixed kFixed[] = {
      {"qk_norm", true},      {"moe_router_use_sigmoid", true},
      {"hidden_act", "silu"}, {"attention_bias", false},
      {"mlp_bias", false},
  };
  for (const auto& [key, expected] : kFixed) {
    const json* value = find(config, key);
    if (value != nullptr && *value != expected) {
      return fail("{}: only {} is computed here, found {}", key, expected.dump(), value->dump());
    }
  }
  return {};
}

/// "default" RoPE with its theta in `rope_parameters`, or with theta at the top.
Result<double> parse_rope(const json& config) {
  std::optional<double> theta;
  const auto take = [&](const json& object, const char* where) -> Result<void> {
    const json* value = find(object, "rope_theta");
    if (value == nullptr) return {};
    TERCET_TRY(const double found, number(*value, where, 1.0, 1e15));
    if (theta && *theta != found)
      return fail("rope_parameters.rope_theta {} and rope_theta {} disagree", *theta, found);
    theta = found;
    return {};
  };
  for (const char* section : {"rope_parameters", "rope_scaling"}) {
    const json* rope = find(config, section);
    if (rope == nullptr) continue;
    if (!rope->is_object()) return fail("{}: expected an object, found {}", section, rope->dump());
    for (const char* key : {"rope_type", "type"}) {
      const json* type = find(*rope, key);
      if (type != nullptr && *type != "default") {
        return fail("{}.{}: only \"default\" is computed here, found {}", section, key, type->dump());
      }
    }
    if (const json* part = find(*rope, "partial_rotary_factor"); part != nullptr && *part != 1.0) {
      return fail("{}.partial_rotary_factor: only 1 is computed here, found {}", section, part->dump());
    }
    TERCET_TRY_VOID(take(*rope, "rope_parameters.rope_theta"));
  }
  TERCET_TRY_VOID(take(config, "rope_theta"));
  if (!theta) return fail("rope_parameters.rope_theta (or rope_theta) is missing");
  return *theta;
}

Result<int64_t> parse_moe_intermediate(const json& config) {
  std::optional<int64_t> size;
  for (const char* key : {"moe_intermediate_size", "expert_hidden_dim"}) {
    const json* value = find(config, key);
    if (value == nullptr) continue;
    TERCET_TRY(const int64_t found, whole(*value, key, 1, 1 << 20));
    if (size && *size != found)
      return fail("moe_intermediate_size {} and expert_hidden_dim {} disagree", *size, found);
    size = found;
  }
  if (!size) return fail("moe_intermediate_size (or expert_hidden_dim) is missing");
  return *size;
}

Result<std::vector<LayerKind>> parse_layer_types(const json& types, int64_t num_layers) {
  std::vector<LayerKind> kinds;
  if (!types.is_array() || static_cast<int64_t>(types.size()) != num_layers) {
    return fail("mlp_layer_types: expected a list of {} entries (num_hidden_layers), found {}", num_layers,
                types.is_array() ? fmt::format("{}", types.size()) : types.dump());
  }
  for (const json& type : types) {
    if (type != "dense" && type != "sparse") {
      return fail("mlp_layer_types: expected \"dense\" or \"sparse\", found {}", type.dump());
    }
    kinds.push_back(type == "dense" ? LayerKind::dense : LayerKind::sparse);
  }
  return kinds;
}

Result<std::vector<LayerKind>> parse_layers(const json& config, int64_t num_layers) {
  const json* dense = find(config, "first_k_dense_replace");
  const json* types = find(config, "mlp_layer_types");
  if (dense == nullptr && types == nullptr)
    return fail("first_k_dense_replace (or mlp_layer_types) is missing");
  std::vector<LayerKind> kinds(static_cast<size_t>(num_layers), LayerKind::sparse);
  if (dense != nullptr) {
    TERCET_TRY(const int64_t count, whole(*dense, "first_k_dense_replace", 0, num_layers));
    std::fill_n(kinds.begin(), count, LayerKind::dense);
  }
  if (types == nullptr) return kinds;
  TERCET_TRY(std::vector<LayerKind> listed, parse_layer_types(*types, num_layers));
  if (dense != nullptr && listed != kinds) {
    return fail("first_k_dense_replace {} and mlp_layer_types {} disagree", dense->dump(), types->dump());
  }
  return listed;
}

Result<std::vector<int32_t>> parse_ids(const json& config, const char* key, int64_t vocab_size) {
  std::vector<int32_t> ids;
  const json* value = find(config, key);
  if (value == nullptr) return ids;
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    TERCET_TRY(const int64_t found, whole(id, key, 0, vocab_size - 1));
    ids.push_back(static_cast<int32_t>(found));
  }
  return ids;
}

Result<void> parse_sizes(const json& config, Config& c) {
  TERCET_TRY(c.vocab_size, require_whole(config, "vocab_size", 1, 1 << 22));
  TERCET_TRY(c.hidden_size, require_whole(config, "hidden_size", 1, 1 << 17));
  TERCET_TRY(c.num_layers, require_whole(config, "num_hidden_layers", 1, 1000));
  TERCET_TRY(c.num_heads, require_whole(config, "num_attention_heads", 1, 1024));
  TERCET_TRY(c.num_kv_heads, require_whole(config, "num_key_value_heads", 1, 1024));
  TERCET_TRY(c.intermediate_size, require_whole(config, "intermediate_size", 1, 1 << 20));
  TERCET_TRY(c.moe_intermediate_size, parse_moe_intermediate(config));
  TERCET_TRY(c.num_experts, require_whole(config, "num_experts", 2, 4096));
  TERCET_TRY(c.experts_per_token, require_whole(config, "num_experts_per_tok", 1, c.num_experts));
  TERCET_TRY(c.num_shared_experts, require_whole(config, "num_shared_experts", 0, 64));
  // Positions are whole numbers in float32.
  TERCET_TRY(c.max_positions, require_whole(config, "max_position_embeddings", 1, 1 << 24));
  TERCET_TRY(c.layers, parse_layers(config, c.num_layers));
  if (find(config, "num_nextn_predict_layers") != nullptr) {
    TERCET_TRY(c.mtp_layers, require_whole(config, "num_nextn_predict_layers", 0, 1));
  }
  TERCET_TRY(const int64_t head_dim, require_whole(config, "head_dim", 1, 1 << 16));
  if (head_dim != kHeadDim) return fail("head_dim: only {} is computed here, found {}", kHeadDim, head_dim);
  if (c.num_heads % c.num_kv_heads != 0) {
    return fail("num_attention_heads {} is no multiple of num_key_value_heads {}", c.num_heads,
                c.num_kv_heads);
  }
  return {};
}

/// A product's inputs are cut into groups (docs/exactness.md, rule 1).
Result<void> check_groups(const Config& c) {
  const int64_t group = c.quantization.defaults.bits == 0 ? 64 : c.quantization.defaults.group;
  const std::pair<const char*, int64_t> inputs[] = {{"hidden_size", c.hidden_size},
                                                    {"intermediate_size", c.intermediate_size},
                                                    {"moe_intermediate_size", c.moe_intermediate_size}};
  for (const auto& [key, size] : inputs) {
    if (size % group != 0)
      return fail("{}: expected a multiple of the group size {}, found {}", key, group, size);
  }
  return {};
}

void log_ignored(const json& config) {
  for (const char* key :
       {"enable_moe_fp32_combine", "enable_lm_head_fp32", "enable_attention_fp32_softmax"}) {
    if (const json* value = find(config, key)) {
      log_info("config.json: {} is {}, ignored: these operations are float32 here", key, value->dump());
    }
  }
}

json write_entry(const QuantizationEntry& entry) {
  if (entry.bits == 0) return false;
  return {{"bits", entry.bits}, {"group_size", entry.group}};
}

}  // namespace

Result<Config> parse_config(std::string_view config_json) {
  const json config = json::parse(config_json, nullptr, false);
  if (!config.is_object()) return fail("expected a JSON object");
  const json* model_type = find(config, "model_type");
  if (model_type == nullptr) return fail("model_type is missing (expected \"hy_v3\")");
  if (*model_type != "hy_v3") return fail("model_type: expected \"hy_v3\", found {}", model_type->dump());
  TERCET_TRY_VOID(refuse_variants(config));

  Config c;
  TERCET_TRY_VOID(parse_sizes(config, c));
  TERCET_TRY(c.rope_theta, parse_rope(config));
  TERCET_TRY(c.rms_norm_eps, require_float(config, "rms_norm_eps", 1e-20, 1.0));
  TERCET_TRY(c.router_scaling, require_float(config, "router_scaling_factor", 1e-6, 1e6));
  TERCET_TRY(c.route_norm, require_bool(config, "route_norm"));
  TERCET_TRY(c.expert_bias, require_bool(config, "moe_router_enable_expert_bias"));
  TERCET_TRY(c.tied_embeddings, require_bool(config, "tie_word_embeddings"));
  TERCET_TRY(c.bos_ids, parse_ids(config, "bos_token_id", c.vocab_size));
  TERCET_TRY(c.eos_ids, parse_ids(config, "eos_token_id", c.vocab_size));
  TERCET_TRY(c.quantization, parse_quantization(config_json));
  TERCET_TRY_VOID(check_groups(c));
  log_ignored(config);
  return c;
}

std::string write_config(const Config& c) {
  json types = json::array();
  for (const LayerKind kind : c.layers) types.push_back(kind == LayerKind::dense ? "dense" : "sparse");
  json config = {
      {"architectures", {"HYV3ForCausalLM"}},
      {"model_type", "hy_v3"},
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_layers},
      {"num_attention_heads", c.num_heads},
      {"num_key_value_heads", c.num_kv_heads},
      {"head_dim", kHeadDim},
      {"num_experts", c.num_experts},
      {"num_experts_per_tok", c.experts_per_token},
      {"num_shared_experts", c.num_shared_experts},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"mlp_layer_types", types},
      {"max_position_embeddings", c.max_positions},
      {"rms_norm_eps", c.rms_norm_eps},
      {"rope_parameters", {{"rope_theta", c.rope_theta}, {"rope_type", "default"}}},
      {"router_scaling_factor", c.router_scaling},
      {"route_norm", c.route_norm},
      {"moe_router_enable_expert_bias", c.expert_bias},
      {"num_nextn_predict_layers", c.mtp_layers},
      {"tie_word_embeddings", c.tied_embeddings},
      {"bos_token_id", c.bos_ids},
      {"eos_token_id", c.eos_ids},
  };
  if (c.quantization.defaults.bits != 0) {
    config["quantization"] = write_entry(c.quantization.defaults);
    for (const auto& [module, entry] : c.quantization.modules)
      config["quantization"][module] = write_entry(entry);
  }
  return config.dump(2) + "\n";
}

}  // namespace tercet::hy_v3
