// Files of token sequences and of their log-probabilities: safetensors with `tokens.I` [n] and, for a KIND
// such as main or mtp, `KIND.I.ids` and `KIND.I.logprobs` [n, top].
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "serve/divergence.h"
#include "weights/tensor_source.h"

namespace tercet {

/// The sequences `tokens.I` (int16 or int32) by I.
Result<std::map<int, std::vector<int32_t>>> read_token_sequences(const TensorSource& file);

/// `KIND.I.ids` and `KIND.I.logprobs` by I. Error where there are none, naming the kinds that the file has.
Result<std::map<int, TopLogprobs>> read_top_logprobs(const TensorSource& file, const std::string& kind);

/// Writes {kind: {I: …}}.
Result<void> write_top_logprobs(const std::filesystem::path& path,
                                const std::map<std::string, std::map<int, TopLogprobs>>& kinds);

}  // namespace tercet
