#include "backend/cuda/select/division.h"

#include <algorithm>

namespace tercet::cuda {
namespace {

/// Pairs of an expert, on average, from which on four kernels, for pieces of 128 pairs and of fewer, are
/// worth their beginnings and ends.
constexpr int64_t kNarrowsFrom = 96;
/// Warps of product_leaves() that a multiprocessor has registers for.
constexpr int64_t kLeafWarps = 16;

}  // namespace

int mma_rows_together(const Weights& weights, int64_t rows) {
  return weights.planes == 2 || rows <= kMmaFewRows ? kMmaFewRows : kMmaRows;
}

int float_rows_together(int64_t rows) {
  if (rows > kFloatFewRows) return kFloatRows;
  return rows <= 8 ? 8 : rows <= 16 ? 16 : kFloatFewRows;
}

int64_t leaf_floats(const Weights& weights, int64_t rows, int together, int parts, int processors) {
  const int64_t pieces = (rows + together - 1) / together * parts;
  return weights.leaves > 1 && 2 * pieces <= processors ? rows * weights.n : 0;
}

bool takes_leaves(const DeviceTraits& device, const Weights& weights, int64_t rows) {
  const int64_t tiles = (weights.n + kTile - 1) / kTile;
  const int64_t pieces = (rows + kLeafRows - 1) / kLeafRows;
  return device.wgmma() && weights.planes == 1 && weights.leaves > 1 &&
         tiles / 2 * pieces * weights.leaves <= kLeafWarps * device.processors &&
         static_cast<int64_t>(leaf_shared(weights)) <= device.shared_bytes;
}

int rows_together(const Weights& weights, bool swiglu, int64_t rows, int64_t copies, int processors) {
  // What a block takes for a piece of work, relative to one of 128 rows: the work that rows share is a good
  // part.
  constexpr struct {
    int rows;
    float cost;
  } kChoices[] = {{16, 0.25F}, {32, 0.37F}, {64, 0.6F}, {128, 1.0F}};
  int best = 0;
  float least = 0.0F;
  for (const auto& choice : kChoices) {
    if (weights.planes == 2 && choice.rows > 32) continue;
    const int64_t blocks = choice.rows <= 32 && weights.planes == 1 ? 2 : 1;  // of a multiprocessor
    // An expert's last piece of work is half full on average, or as narrow as it has to be.
    const bool narrows = choice.rows == kWidths * kNarrower && rows >= kNarrowsFrom;
    const int64_t spare = narrows ? kNarrower / 2 : choice.rows / 2;
    const int64_t pieces =
        copies == 1 ? (rows + choice.rows - 1) / choice.rows : copies * (rows + spare) / choice.rows;
    const int64_t work = std::max(pieces, narrows ? 0 : copies) * many_parts(weights, swiglu ? 1 : 0);
    const int64_t waves = (work + processors * blocks - 1) / (processors * blocks) * blocks;
    const float cost = choice.cost * static_cast<float>(waves);
    if (best == 0 || cost < least) {
      best = choice.rows;
      least = cost;
    }
  }
  return best;
}

}  // namespace tercet::cuda
