// The defaults that a checkpoint's generation_config.json gives.
#pragma once

#include <string_view>
#include <vector>

#include "base/error.h"
#include "sampling/sampling_params.h"

namespace tercet {

struct GenerationConfig {
  SamplingParams defaults;
  std::vector<int32_t> eos_tokens;  // empty where the file names none
};

/// Takes temperature, top_p, top_k, min_p, repetition_penalty, do_sample (false: temperature 0) and
/// eos_token_id (a number or a list) from the file's text; other keys concern other programs. `origin` names
/// the file in errors: broken JSON, a value of the wrong type, a value that validate() refuses.
Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view origin,
                                                 int32_t vocabulary);

}  // namespace tercet
