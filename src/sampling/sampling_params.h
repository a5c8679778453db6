// What a request may ask of its draws and of its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/draw.h"

namespace tercet {

struct SamplingParams {
  float temperature = 1.0F;           // 0, or 10^-6 … 10^6
  float top_p = 1.0F;                 // above 0, at most 1 (off)
  int32_t top_k = 0;                  // −1 and 0: off
  float min_p = 0.0F;                 // 0 (off) … 1
  float repetition_penalty = 1.0F;    // 0.01 … 100
  float presence_penalty = 0.0F;      // −2 … 2
  float frequency_penalty = 0.0F;     // −2 … 2
  std::vector<LogitBias> logit_bias;  // −100 … 100, each token once
  std::optional<uint64_t> seed;       // none: one is chosen for the request, and reported

  std::vector<std::string> stop;     // strings; the answer's text ends before the first (StopMatcher)
  std::vector<int32_t> stop_tokens;  // end the answer as the model's own end tokens do
  bool ignore_eos = false;           // the model's end tokens end nothing; stop_tokens still do
  int32_t min_tokens = 0;            // no token that would end the answer is drawn before
  std::optional<int32_t>
      max_tokens;            // none: up to the context's limit. 0: the prompt is computed, nothing drawn
  int32_t top_logprobs = 0;  // report the N most probable tokens with each drawn one
};

/// The most that `top_logprobs` may be.
inline constexpr int32_t kMaxTopLogprobs = 128;

/// One error for the first value that is out of its bounds.
Result<void> validate(const SamplingParams& params, int32_t vocabulary);

}  // namespace tercet
