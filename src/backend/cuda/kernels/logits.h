// Log-probabilities and draws (rule 12) of rows of logits.
#pragma once

#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// What is wanted of a row: a draw without penalties, bias, mask and truncation, or a target's
/// log-probability (target < 0: none).
struct LogitRow {
  uint64_t seed;
  uint32_t position;
  int32_t draw;
  float temperature;  // 0: the largest
  int32_t target;
  int32_t row;  // of the step
  int32_t zero;
};

struct LogitResult {
  int32_t failed;
  int32_t token;
  float logprob;
  float max;
  float log_mass;
};

/// What a block finds in its part of a row.
struct LogitPart {
  uint64_t mass;
  float max;
  float best;  // of the draw
  int32_t token;
  int32_t bad;
};
constexpr int kLogitParts = 32;

struct LogitParams {
  const float* logits;     // [rows][vocabulary]
  const LogitRow* wanted;  // [rows]
  LogitPart* parts;        // [rows][kLogitParts]
  LogitResult* results;    // [rows], in the host's memory
  float* all;              // [rows][vocabulary]: every log-probability; or null
  const uint8_t* failed;   // of the step's rows: a row that failed before fails here
  int32_t rows, vocabulary;
};
void evaluate_logits(Launcher& launcher, const LogitParams& params);

}  // namespace tercet::cuda
