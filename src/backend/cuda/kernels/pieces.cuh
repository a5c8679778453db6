// How blocks share the work of a product of many rows: pieces along the rows times parts of the outputs.
#pragma once

#include "backend/cuda/kernels/product_few.h"

namespace tercet::cuda {

/// What a block works at: rows or pairs first … first + count, outputs of `part`, leaves leaf … leaf +
/// leaves.
struct Work {
  int first, count, part;
  int leaf, leaves;
  int64_t expert;
};

/// Pieces of work along the rows.
__device__ inline int slots_of(const FewProductParams& p) {
  if (p.items == nullptr) return p.slots * (p.leaf_stride != 0 ? p.weights.leaves : 1);
  return p.narrower > 0 ? p.ends[p.narrower] - p.ends[p.narrower - 1] : p.ends[0];
}

template <int kTokens>
__device__ inline Work work_at(const FewProductParams& p, int index, int parts) {
  Work out{0, 0, index % parts, 0, p.weights.leaves, 0};
  int slot = index / parts;
  if (p.narrower > 0) slot += p.ends[p.narrower - 1];
  if (p.leaf_stride != 0) {
    out.leaf = slot % p.weights.leaves;
    out.leaves = 1;
    slot /= p.weights.leaves;
  }
  out.first = slot * kTokens;
  if (p.items != nullptr) {
    const PairItem item = p.items[slot];
    out.first = item.first;
    out.count = item.count;
    out.expert = item.expert;
  } else {
    out.count = min(kTokens, p.rows - out.first);
  }
  return out;
}

/// The tile of a slot of a block that has `here`; with SwiGLU slots are first of gate, then of up. −1: none.
__device__ inline int tile_at(const FewProductParams& p, int part, int slot, int here) {
  const int tiles = (p.weights.n + kTile - 1) / kTile;
  if (p.swiglu == 0) return part * here + slot < tiles ? part * here + slot : -1;
  const int half = here / 2;
  const int of_half = part * half + slot % half;
  return of_half < tiles / 2 ? of_half + slot / half * (tiles / 2) : -1;
}
template <int kHere>
__device__ inline int tile_at(const FewProductParams& p, int part, int slot) {
  return tile_at(p, part, slot, kHere);
}

__device__ inline int64_t y_row(const FewProductParams& p, const Work& work, int i) {
  return p.items != nullptr ? p.sorted[work.first + i] : work.first + i;
}
__device__ inline int64_t x_row(const FewProductParams& p, const Work& work, int i) {
  if (p.items != nullptr) return y_row(p, work, i) / p.x_div;
  return p.ids != nullptr ? p.ids[work.first + i] : work.first + i;
}

}  // namespace tercet::cuda
