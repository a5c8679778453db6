// What kernels can take, for those who choose among them; needs no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/views.h"

namespace tercet::cuda {

// Shared memory that a block may have on every generation from compute capability 8.0 on.
constexpr int64_t kCommonShared = 99 << 10;

// product_few.h: rows that one pass over the weights can serve.
constexpr int kFewRows = 16;

// product_row.h: rows (of a slot), and experts of a row, at most.
constexpr int kRowRows = 4;
constexpr int kFewChosen = 8;

// product_many.h: bytes of x.halves, and of an expert's or a product's weights, must be less than this.
constexpr int64_t kManyBytes = int64_t{1} << 32;

// Of 128 rows and pairs, pieces that have fewer are narrower by multiples of 32.
constexpr int kNarrower = 32;
constexpr int kWidths = 4;

// Tiles of a block, and blocks side by side that a product's outputs take.
constexpr int kManyBlockTiles = 12;
constexpr int kMmaBlockTiles = 16;
TERCET_DEVICE_HOST inline int block_parts(const Weights& w, int swiglu, int block_tiles) {
  const int tiles = (w.n + kTile - 1) / kTile;
  return swiglu != 0 ? (tiles / 2 + block_tiles / 2 - 1) / (block_tiles / 2)
                     : (tiles + block_tiles - 1) / block_tiles;
}
TERCET_DEVICE_HOST inline int many_parts(const Weights& w, int swiglu) {
  return block_parts(w, swiglu, kManyBlockTiles);
}
TERCET_DEVICE_HOST inline int mma_parts(const Weights& w, int swiglu) {
  return block_parts(w, swiglu, kMmaBlockTiles);
}

// product_mma.h: rows or pairs that a block takes, of which two planes leave room for the fewer alone.
constexpr int kMmaRows = 64;
constexpr int kMmaFewRows = 32;

// product_floats.h: rows or pairs that a block takes where they are many, and its tiles; few.
constexpr int kFloatRows = 64;
constexpr int kFloatBlockTiles = 8;
constexpr int kFloatFewRows = 32;

// product_batch.h: pairs of an item at most, rows of a block of product_leaves(), and what these have of
// shared memory besides their rows.
constexpr int kBatchPairs = 8;
constexpr int kLeafRows = 16;
constexpr int kBatchBlocks = 5;  // of four warps that a multiprocessor has registers for
constexpr int kBatchIdBytes = kLeafRows * 4;
constexpr int kBatchRowPad = 16;  // so that eight rows lie in different banks

/// Of product_batch() for so many pairs an item: rows, their sums and leaf units.
inline size_t batch_shared(const Weights& w, int64_t pairs) {
  const int row = w.groups() * kBlock * 2 + kBatchRowPad;
  return static_cast<size_t>(pairs * (row + (w.groups() + w.leaves) * 4)) + kBatchIdBytes;
}

/// Of product_leaves().
inline size_t leaf_shared(const Weights& w) {
  Weights leaf = w;
  leaf.k = w.k / w.leaves;
  leaf.leaves = 1;
  return batch_shared(leaf, kLeafRows);
}

// rows_few.h: numbers of a row at most.
constexpr int kHeldRow = 16384;

// attention_blocks.h, attention_tiles.h: query heads of a KV head at most.
constexpr int kMaxSharing = 8;
constexpr int kSpanBlocks = 4;  // blocks of 64 keys in a span (rule 8)

// attention_blocks.h: of a block's keys, or values; the ring that they come through, a slot having room for
// the exponents of keys and values as well; shared memory of a thread block: the ring, O, m and l of each of
// four blocks of keys and head, two barriers a slot; numbers of a leaf that is folded and rounded at most.
constexpr int kBlockKeyBytes = 64 * 128 * 2;
constexpr int kSpanSlotBytes = kBlockKeyBytes + 2 * 64;
constexpr int kSpanSlots = 5;
constexpr int kSpanShared =
    kSpanSlots * (kSpanSlotBytes + 2 * 8) + kSpanBlocks * kMaxSharing * ((128 + 8) * 4 + 8);
constexpr int kSpansAtOnce = 2;  // of a multiprocessor
constexpr int kFoldedLeaf = 1024;

// program.h: rows of a step.
constexpr int kProgramRows = 4;

// router.h
constexpr int kMaxExperts = 1024;
constexpr int kMaxChosen = 64;

/// Whether that is what the kernels of product_row.h, product_few.h and product_many.h take: affine weights
/// in groups of 64 with bf16 scales.
inline bool fragments(const Weights& w) { return w.planes != 0 && w.group == kBlock && w.wide == 0; }

/// Whether product_floats.h takes it.
inline bool floats(const Weights& w) { return w.planes == 0 && w.group == kBlock; }

// Shared memory of product_row.h.

constexpr int kPlanePad = 64;               // bytes between planes, so that they lie in different banks
constexpr int kGroupScales = kTile * 4;     // bytes
constexpr int kSumsOfTile = kTile * 4 * 4;  // bytes: of 16 outputs and up to four rows

/// What a warp holds of one tile and leaf, in bytes.
struct LeafBytes {
  int values, scales;
  TERCET_DEVICE_HOST LeafBytes(const Weights& w, int groups)
      : values(groups * w.planes * kBlockBytes), scales(groups * kGroupScales) {}
  TERCET_DEVICE_HOST int all() const { return values + scales; }
};

/// Of a row in shared memory: two planes, then units.
TERCET_DEVICE_HOST inline int row_bytes(int k) {
  return (2 * (k + kPlanePad) + k / kBlock * 8 + 15) / 16 * 16;
}

/// Tiles of a block, of which each leaf has a warp.
inline int row_tiles(const Weights& w, bool swiglu) {
  const int least = swiglu ? 2 : 1;
  return 8 / w.leaves > least ? 8 / w.leaves : least;
}

/// Of product_row() for so many rows (of a slot).
inline size_t row_shared(const Weights& w, int64_t rows, bool swiglu) {
  const int warps = row_tiles(w, swiglu) * w.leaves;
  const LeafBytes leaf(w, w.groups() / w.leaves);
  return static_cast<size_t>(warps * (leaf.all() + kSumsOfTile) + rows * row_bytes(w.k));
}

/// Of down_few() for so many experts of a row.
inline size_t down_shared(const Weights& w, int64_t chosen) {
  return static_cast<size_t>(chosen * (LeafBytes(w, w.groups()).all() + row_bytes(w.k)));
}

}  // namespace tercet::cuda
