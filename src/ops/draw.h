// Drawing a token from a row of logits: a pure function of logits, parameters, seed and position
// (docs/exactness.md, rule 12).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tercet {

struct LogitBias {
  int32_t token = 0;
  float bias = 0.0F;
};

/// How often a token occurred: in prompt and answer (repetition), in the answer alone (presence, frequency).
struct TokenCount {
  int32_t token = 0;
  bool in_context = false;
  int32_t in_answer = 0;
};

/// Applied in this order: repetition, presence and frequency penalties, bias, mask, ÷ temperature, top-k,
/// top-p, min-p. Neutral values switch a part off.
struct DrawParams {
  float temperature = 1.0F;         // ≥ 0; 0: the largest logit, ties to the lower index
  int32_t top_k = 0;                // ≥ 0; 0: off
  float top_p = 1.0F;               // (0, 1]; 1: off
  float min_p = 0.0F;               // [0, 1]; 0: off
  float repetition_penalty = 1.0F;  // > 0; divides positive logits of tokens seen, multiplies negative ones
  float presence_penalty = 0.0F;    // subtracted once from a token in the answer
  float frequency_penalty = 0.0F;   // subtracted for each time it is in the answer
  uint64_t seed = 0;
  uint32_t position = 0;  // absolute position of the token to be drawn
  std::vector<LogitBias> bias;
  std::vector<TokenCount> counts;  // each token at most once
  std::vector<uint32_t> mask;      // bit t of word t/32: token t is allowed. Empty: all are
};

/// What is wanted of one row's logits.
struct RowOutput {
  int32_t row = 0;
  bool draw = false;
  DrawParams params;    // where draw
  int32_t target = -1;  // report this token's log-probability; where draw: the drawn token's
  int32_t top = 0;      // report the N most probable tokens, by (log-probability, then lower index)
  bool all = false;     // report every token's log-probability
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0F;
};

/// Log-probabilities are those of the raw logits.
struct RowResult {
  bool failed = false;  // the row, or one before it in its sequence's step, met a non-finite value
  int32_t token = -1;   // drawn, or the target
  float logprob = 0.0F;
  std::vector<TokenLogprob> top;
  std::vector<float> all;  // [vocabulary]
};

}  // namespace tercet
