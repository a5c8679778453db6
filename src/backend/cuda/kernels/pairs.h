// Rows and their experts, sorted by expert, so that an expert's weights serve several rows.
#pragma once

#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// Pairs sorted[first … first + count) of one expert.
struct PairItem {
  int32_t expert, first, count;
};

/// Pair p chooses experts[p]. Items have at most `most` pairs; `total` receives their number, at most
/// pairs / most + count.
struct PairParams {
  const int32_t* experts;
  int32_t* sorted;  // [pairs]
  PairItem* items;
  int32_t* total;
  int32_t pairs, count, most, zero;
};
void sort_pairs(Launcher& launcher, const PairParams& params);

}  // namespace tercet::cuda
