// Rows and their experts, sorted by expert, so that an expert's weights serve several rows.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/kernels/router.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// Pairs sorted[first … first + count) of one expert, or where that is −1, rows that all take one more
/// expert.
struct PairItem {
  int32_t expert, first, count;
};

/// Pair p chooses experts[p]. Items have at most `most` pairs; ends[kWidths − 1] receives their number, at
/// most pairs / most + count. Of kWidths·kNarrower pairs at most, those of at most most − i·kNarrower come
/// from ends[i − 1] on; else all ends are alike. `beside`: rows that take one more expert besides, in items
/// of their own, which come first; only where `most` is at most kBatchPairs.
struct PairParams {
  const int32_t* experts;
  int32_t* sorted;  // [pairs + beside]
  PairItem* items;
  int32_t* ends;  // [kWidths]
  int32_t pairs, count, most, beside;
};
void sort_pairs(Launcher& launcher, const PairParams& params);

/// choose_experts(), and by the block that is last the pairs of those choices, at most kBatchPairs an item.
/// Pairs plus items are fewer than 2^16. ticket: 0, and 0 again when that is done.
struct ChooseAndSortParams {
  ChooseParams choose;
  PairParams sort;
  uint32_t* ticket;
};
void choose_and_sort(Launcher& launcher, const ChooseAndSortParams& params);

}  // namespace tercet::cuda
