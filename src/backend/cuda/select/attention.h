// Which kernels attend.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/select/device.h"

namespace tercet::cuda {

enum class AttentionKernel : uint8_t {
  plain,  // attention() of attention.h; then for every sequence of a step
  tiles,  // attention_tiles.h: many rows of a sequence at a time
  mma,    // attention_mma.h: likewise
  alone,  // attention_blocks.h: row by row, those of several sequences together
};

/// For a sequence of so many rows.
Choice<AttentionKernel> choose_attention(const DeviceTraits& device, int64_t heads, int64_t kv_heads,
                                         int64_t rows);

/// What makes a row's result of its spans.
enum class FoldKernel : uint8_t {
  spans,
  rounding,  // which rounds the result into halves for the product that follows, too
};

/// For `rows` rows, which are `all` of the step or not, with results of k numbers in so many leaves.
Choice<FoldKernel> choose_fold(const DeviceTraits& device, bool all, int64_t rows, int64_t k, int64_t leaves);

std::string_view name_of(AttentionKernel kernel);
std::string_view name_of(FoldKernel kernel);

}  // namespace tercet::cuda
