// Log-probabilities and draws (docs/exactness.md, rule 12), without sorting the vocabulary.
#pragma once

#include <span>

#include "backend/cpu/kernels.h"
#include "ops/draw.h"

namespace tercet::cpu {

/// Everything `output` asks of its row, as reference::evaluate() gives it.
RowResult evaluate(const Kernels& kernels, std::span<const float> logits, const RowOutput& output);

}  // namespace tercet::cpu
