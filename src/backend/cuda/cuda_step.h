// A step and a cache on the device.
#pragma once

#include <vector>

#include "backend/cuda/kernels/attention_blocks.h"
#include "backend/cuda/kernels/attention_tiles.h"
#include "backend/cuda/runtime/memory.h"
#include "ops/ops.h"

namespace tercet::cuda {

struct CudaStep final : Step {
  RowPlaces places{};
  uint8_t* failed = nullptr;  // [rows], on the device
  int32_t last_position = 0;  // the largest of all rows

  /// Whether no two rows are of one sequence.
  bool single() const { return batch.sequences.size() == static_cast<size_t>(batch.rows()); }

  /// Who attends how, from the first attention of the step on: tiles of long sequences, other rows alone.
  struct Attention {
    int32_t sharing = 0;  // query heads a KV head; 0: not made yet
    const AttentionTile* tiles = nullptr;
    int32_t tile_count = 0;
    bool mma = false;                // whether by attention_mma()
    const int32_t* alone = nullptr;  // null: the first of all rows
    int32_t alone_count = 0;
    /// Of those: rows that attend at a time, so that the partial results of long contexts stay within bounds.
    struct Part {
      int32_t first, rows;
      const SpanRows* groups;
      int32_t group_count;
    };
    std::vector<Part> parts;
  } attention;
  int64_t* live = nullptr;  // steps that exist

  CudaStep() = default;
  CudaStep(const CudaStep&) = delete;
  ~CudaStep() override {
    if (live != nullptr) --*live;
  }
};

struct CudaCache final : KvCache {
  DeviceBytes memory;
  CacheView view{};
};

}  // namespace tercet::cuda
