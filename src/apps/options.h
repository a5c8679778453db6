// The options that several commands share, in the dialects of llama.cpp and vLLM where they mean the same.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/draw.h"

namespace tercet {

constexpr int kLayersThatFit = -1;
constexpr int kAllLayers = std::numeric_limits<int>::max();

/// Which model to run, and on what.
struct ModelOptions {
  std::string model = {};  // a checkpoint's folder or file, or synthetic:…
  int64_t context = 0;     // tokens of prompt and answer; 0: what the model was made for
  int threads = 0;         // 0: all that this process may use
  int chunk = 0;           // tokens of a prompt that one step reads; 0: the engine's choice
  std::string backend = "auto";
  int gpu_layers = kLayersThatFit;      // or kAllLayers, or how many
  double gpu_memory_utilization = 0.9;  // of the GPU's memory, others' use included
  int pipeline_stages = 1;
  int tensor_shards = 1;
  bool verbose = false;
};

/// How tokens are drawn and when an answer ends. What is not given comes from the checkpoint.
struct SamplingOptions {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<uint64_t> seed;   // none: a new one each time
  std::optional<int> max_tokens;  // none: until the context is full
  int min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;
  std::vector<LogitBias> logit_bias;
  bool ignore_eos = false;
};

/// `--model` and the positional MODEL, `--ctx-size`, `--threads`, `--backend`, placements. The options must
/// live as long as the app.
void add_model_options(CLI::App& app, ModelOptions& options);
void add_sampling_options(CLI::App& app, SamplingOptions& options);

/// "15043+1" or "15043-0.5": a token and what is added to its logit.
Result<LogitBias> parse_logit_bias(std::string_view text);

}  // namespace tercet
