#include "sampling/generation_config.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace tercet {
namespace {

using Json = nlohmann::json;

/// Leaves `value` where the key is absent or null.
Result<void> read(const Json& config, const char* key, float& value) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return {};
  if (!it->is_number()) return fail("{} must be a number, not {}", key, it->dump());
  value = static_cast<float>(it->get<double>());
  return {};
}

Result<int32_t> whole_number(const Json& json, const char* key) {
  if (!json.is_number_integer()) return fail("{} must be a whole number, not {}", key, json.dump());
  const auto value = json.get<double>();  // what 32 bits hold, it holds exactly
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    return fail("{} must fit 32 bits, but is {}", key, json.dump());
  }
  return static_cast<int32_t>(value);
}

Result<void> read_top_k(const Json& config, int32_t& value) {
  const auto it = config.find("top_k");
  if (it == config.end() || it->is_null()) return {};
  TERCET_TRY(value, whole_number(*it, "top_k"));
  return {};
}

Result<void> read_do_sample(const Json& config, float& temperature) {
  const auto it = config.find("do_sample");
  if (it == config.end() || it->is_null()) return {};
  if (!it->is_boolean()) return fail("do_sample must be true or false, not {}", it->dump());
  if (!it->get<bool>()) temperature = 0.0F;
  return {};
}

Result<std::vector<int32_t>> read_eos(const Json& config, int32_t vocabulary) {
  std::vector<int32_t> tokens;
  const auto it = config.find("eos_token_id");
  if (it == config.end() || it->is_null()) return tokens;
  for (const Json& json : it->is_array() ? *it : Json::array({*it})) {
    TERCET_TRY(const int32_t token, whole_number(json, "eos_token_id"));
    if (token < 0 || token >= vocabulary) {
      return fail("eos_token_id {} is not in the vocabulary of {}", token, vocabulary);
    }
    tokens.push_back(token);
  }
  return tokens;
}

Result<GenerationConfig> parse(std::string_view text, int32_t vocabulary) {
  const Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) {
    return fail("expected a JSON object, found {}",
                config.is_discarded() ? "broken JSON" : config.type_name());
  }
  GenerationConfig result;
  SamplingParams& defaults = result.defaults;
  TERCET_TRY_VOID(read(config, "temperature", defaults.temperature));
  TERCET_TRY_VOID(read(config, "top_p", defaults.top_p));
  TERCET_TRY_VOID(read(config, "min_p", defaults.min_p));
  TERCET_TRY_VOID(read(config, "repetition_penalty", defaults.repetition_penalty));
  TERCET_TRY_VOID(read_top_k(config, defaults.top_k));
  TERCET_TRY_VOID(read_do_sample(config, defaults.temperature));
  TERCET_TRY(result.eos_tokens, read_eos(config, vocabulary));
  TERCET_TRY_VOID(validate(defaults, vocabulary));
  return result;
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view origin,
                                                 int32_t vocabulary) {
  Result<GenerationConfig> result = parse(text, vocabulary);
  if (!result) return fail("{}: {}", origin, result.error().message);
  return result;
}

}  // namespace tercet
