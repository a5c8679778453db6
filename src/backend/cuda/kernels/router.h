// The router's choice (rule 10), and what sums up a row's experts (rule 11).
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// logits: [2·rows][experts], of a row r·step and, `rest` rows further, of what its rounding left. A logit
/// that is not finite counts as 0 and sets failed[row], as does unfit[row] where `unfit` is not null. Where
/// `leaves` is not 0, a logit is the sum of so many, leaf_stride apart (LeafSumParams).
struct ChooseParams {
  const float* logits;
  const float* bias;
  int32_t* chosen_experts;  // [rows][chosen], ascending
  float* weights;           // [rows][chosen]
  uint8_t* failed;
  const uint8_t* unfit;
  int32_t rows, experts, chosen, normalise;
  float scaling;
  int32_t step, rest, leaves;
  int64_t leaf_stride;
};
void choose_experts(Launcher& launcher, const ChooseParams& params);

/// z[row] = Σ weight·y[row·chosen + j], ascending j, then + shared[row] where not null.
struct CombineParams {
  const float* y;
  const float* weights;
  const float* shared;
  float* z;
  int32_t rows, n, chosen, zero;
};
void combine(Launcher& launcher, const CombineParams& params);

}  // namespace tercet::cuda
