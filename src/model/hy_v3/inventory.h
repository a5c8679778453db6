// What a checkpoint consists of, and what it takes in memory when it runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/placement.h"
#include "model/hy_v3/tensor_names.h"
#include "weights/tensor_source.h"

namespace tercet::hy_v3 {

/// One kind of parameters in one form.
struct InventoryLine {
  std::string part;  // "attention", "routed experts", …
  std::string form;  // "4-bit, groups of 64", "BF16", …
  int64_t parameters = 0;
  int64_t file_bytes = 0;
  int64_t held_bytes = 0;  // by a backend that keeps affine weights as they are: docs/exactness.md, rule 2
  bool mtp = false;        // of the MTP layer, which only runs where it is asked for
};

/// Of these layers and what goes with them; with the last goes the MTP layer. Reads names and shapes, no
/// weights. Shapes that don't fit are for load_matrix() to refuse.
Result<std::vector<InventoryLine>> take_inventory(const Config& config, const ModelNames& names,
                                                  const TensorSource& source, const LayerRange& layers);

struct MemoryPlan {
  int64_t weights = 0;
  int64_t cache_per_token = 0;
  int64_t cache = 0;
  int64_t scratch = 0;

  int64_t total() const { return weights + cache + scratch; }
};

/// What one device allocates for these layers, their inventory, `context` tokens of cache and steps of
/// `max_rows` rows.
MemoryPlan plan_memory(const Config& config, const std::vector<InventoryLine>& inventory,
                       const LayerRange& layers, int64_t context, int64_t max_rows);

}  // namespace tercet::hy_v3
