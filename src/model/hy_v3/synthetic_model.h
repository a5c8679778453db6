// Hy3 models with random weights, made in memory, for whoever measures or tests without a download.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/tensor_names.h"
#include "weights/checkpoint.h"

namespace tercet::hy_v3 {

struct SyntheticOptions {
  uint64_t seed = 0;
  Spelling spelling = Spelling::mlx;
  bool tie_experts =
      false;  // an expert bias of 2^21 everywhere: score + bias has steps of 1/4, so experts tie
};

/// A checkpoint of this configuration: matrices as its `quantization` says (bf16 floats where it gives no
/// bits). Activations stay near 1, router scores and logits are spread. Tensors are made as they are read,
/// on `threads` threads (make_synthetic_source()).
Checkpoint make_synthetic_model(const Config& config, const SyntheticOptions& options, int threads);

/// 4-bit weights in groups of 64, routers of 8 bits, the true shapes of "hy3" (with its MTP layer) or
/// "hy-mt2-30b"; nothing for another name.
std::optional<Config> published_config(std::string_view name);

/// Whether a model is named "synthetic:…" rather than by its path.
bool is_synthetic(std::string_view model);

/// "synthetic:hy3[:LAYERS]" or "synthetic:hy-mt2-30b[:LAYERS]", LAYERS being the first ones of the model.
Result<Checkpoint> parse_synthetic(std::string_view model, uint64_t seed, int threads);

}  // namespace tercet::hy_v3
