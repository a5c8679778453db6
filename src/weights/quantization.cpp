#include "weights/quantization.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

namespace tercet {
namespace {

using nlohmann::json;

constexpr std::array kBits{2, 3, 4, 5, 6, 8};
constexpr std::array kGroups{32, 64, 128};

Result<int> one_of(const json& entry, const std::string& where, const char* key, const auto& allowed) {
  const auto found = entry.find(key);
  if (found == entry.end()) return fail("{}.{} is missing", where, key);
  for (const int value : allowed) {
    if (*found == value) return value;
  }
  return fail("{}.{}: expected one of {}, found {}", where, key, fmt::join(allowed, ", "), found->dump());
}

/// Text values that tell one scheme from another; nothing where the key is absent.
std::string text_of(const json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

Result<QuantizationEntry> parse_entry(const json& entry, const std::string& where) {
  if (const std::string mode = text_of(entry, "mode"); !mode.empty() && mode != "affine") {
    return fail("{}.mode is \"{}\": {} weights are not read yet (expected \"affine\")", where, mode, mode);
  }
  QuantizationEntry result;
  TERCET_TRY(result.bits, one_of(entry, where, "bits", kBits));
  TERCET_TRY(result.group, one_of(entry, where, "group_size", kGroups));
  return result;
}

/// Hugging Face names a scheme by its method; MLX's affine entries have none.
Result<void> refuse_methods(const json& section, const std::string& where) {
  for (const char* key : {"quant_method", "quant_algo", "format", "fmt"}) {
    if (const std::string name = text_of(section, key); !name.empty()) {
      const std::string format = text_of(section, "format");
      return fail("{}.{} is \"{}\"{}: such weights are not read yet", where, key, name,
                  format.empty() || format == name ? "" : fmt::format(" (format \"{}\")", format));
    }
  }
  return {};
}

Result<Quantization> parse_section(const json& section, const std::string& where) {
  if (!section.is_object()) return fail("{}: expected an object, found {}", where, section.dump());
  TERCET_TRY_VOID(refuse_methods(section, where));
  Quantization result;
  TERCET_TRY(result.defaults, parse_entry(section, where));
  for (const auto& [module, entry] : section.items()) {
    if (entry.is_object()) {
      TERCET_TRY(result.modules[module], parse_entry(entry, where + "." + module));
    } else if (entry.is_boolean()) {
      result.modules[module] = entry.get<bool>() ? result.defaults : QuantizationEntry{};
    }
  }
  return result;
}

}  // namespace

Result<Quantization> parse_quantization(std::string_view config_json) {
  const json config = json::parse(config_json, nullptr, false);
  if (!config.is_object()) return fail("expected a JSON object");
  std::optional<Quantization> result;
  for (const std::string where : {"quantization", "quantization_config"}) {
    const auto section = config.find(where);
    if (section == config.end() || section->is_null()) continue;
    TERCET_TRY(Quantization parsed, parse_section(*section, where));
    if (result && (result->defaults != parsed.defaults || result->modules != parsed.modules)) {
      return fail("quantization and quantization_config disagree");
    }
    result = std::move(parsed);
  }
  return result.value_or(Quantization{});
}

}  // namespace tercet
