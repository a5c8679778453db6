// The text side of a checkpoint: tokenizer, tags, template, defaults.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/options.h"
#include "base/error.h"
#include "model/hy_v3/config.h"
#include "sampling/generation_config.h"
#include "sampling/sampling_params.h"
#include "text/chat_template.h"
#include "text/tags.h"
#include "text/tokenizer.h"

namespace tercet {

struct TextModel {
  Tokenizer tokenizer;
  Tags tags;
  ChatTemplate chat_template;
  GenerationConfig generation;  // its eos_tokens also hold the config's and the eos tag

  /// Whether the answer may hold this many tokens is the engine's to say; everything else is checked here.
  Result<SamplingParams> sampling(const SamplingOptions& options) const;
};

/// Fails where a file is missing or wrong, tags are missing, or tokenizer and config disagree on the
/// vocabulary.
Result<TextModel> load_text_model(const ModelOptions& options, const hy_v3::Config& config);

}  // namespace tercet
