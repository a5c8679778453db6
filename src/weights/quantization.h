// How a checkpoint says its matrices are quantised: `quantization` or `quantization_config` in config.json.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tercet {

/// Affine groups along a matrix's inputs. bits 0: floats.
struct QuantizationEntry {
  int bits = 0;   // 2, 3, 4, 5, 6 or 8
  int group = 0;  // 32, 64 or 128

  bool operator==(const QuantizationEntry&) const = default;
};

struct Quantization {
  QuantizationEntry defaults;
  /// Entries of single modules ("model.layers.1.mlp.router.gate").
  std::map<std::string, QuantizationEntry, std::less<>> modules;

  const QuantizationEntry& of(std::string_view module) const {
    const auto found = modules.find(module);
    return found == modules.end() ? defaults : found->second;
  }
};

/// Reads MLX's affine entries from the text of a config.json; floats where there are none. Errors: schemes
/// that are not read (fp8, mxfp4, nvfp4, gptq …), each by its name; bits or group sizes out of range;
/// `quantization` and `quantization_config` that disagree.
Result<Quantization> parse_quantization(std::string_view config_json);

}  // namespace tercet
