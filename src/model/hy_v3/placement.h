// Which part of the model a rank owns: one table for every matrix and every placement.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "model/hy_v3/config.h"

namespace tercet::hy_v3 {

/// Layers begin … end − 1. What holds the first embeds the tokens, what holds the last has norm and head.
struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

inline LayerRange all_layers(const Config& config) { return {0, config.num_layers}; }

/// The layers of `stages` stages, as equal as can be.
std::vector<LayerRange> equal_stages(const Config& config, int stages);

/// Ranks form a grid: `stages` of the pipeline own ranges of layers; within a stage, `shards` own columns.
///
/// | part                         | a shard owns                     | exchanged after it  |
/// |------------------------------|----------------------------------|---------------------|
/// | q, k, v, attention, KV cache | heads (KV heads with theirs)     | attention's output  |
/// | o, down (dense, experts, shared), eh_proj | columns of hidden   | its output          |
/// | gate, up (dense, experts, shared)         | columns of inter    | SwiGLU's output     |
/// | lm_head                      | tokens of the vocabulary         | logits              |
/// | router, norms, embedding     | all                              | nothing             |
struct Placement {
  LayerRange layers;
  int stage = 0;
  int stages = 1;
  int shard = 0;
  int shards = 1;

  bool first_stage() const { return stage == 0; }
  bool last_stage() const { return stage == stages - 1; }
  /// This shard's part of `count` columns, heads or tokens, which `shards` divides.
  int64_t share(int64_t count) const { return count / shards; }
};

/// Refuses more stages than layers, and shards that don't divide every part of the table.
Result<void> check_placement(const Config& config, int stages, int shards);

}  // namespace tercet::hy_v3
