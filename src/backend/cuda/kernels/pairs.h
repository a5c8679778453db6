// Rows and their experts, sorted by expert, so that an expert's weights serve several rows.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// Pairs sorted[first … first + count) of one expert.
struct PairItem {
  int32_t expert, first, count;
};

/// Pair p chooses experts[p]. Items have at most `most` pairs; ends[kWidths − 1] receives their number, at
/// most pairs / most + count. Of kWidths·kNarrower pairs at most, those of at most most − i·kNarrower come
/// from ends[i − 1] on; else all ends are alike.
struct PairParams {
  const int32_t* experts;
  int32_t* sorted;  // [pairs]
  PairItem* items;
  int32_t* ends;  // [kWidths]
  int32_t pairs, count, most, zero;
};
void sort_pairs(Launcher& launcher, const PairParams& params);

}  // namespace tercet::cuda
