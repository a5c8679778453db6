// The parts of the model that one rank owns, as members: no names after loading.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/threads.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/placement.h"
#include "ops/ops.h"
#include "weights/tensor_source.h"

namespace tercet::hy_v3 {

struct DeviceVector {
  Buffer buffer;
  int64_t size = 0;

  Vector view() const { return {static_cast<const float*>(buffer.get()), size}; }
};

/// Shapes [outputs, inputs] below are a shard's, with T shards.
struct SwiGlu {
  std::unique_ptr<Linear> gate_up;  // [2·inter/T, hidden]: gate, then up
  std::unique_ptr<Linear> down;     // [hidden/T, inter]
};

struct Moe {
  std::unique_ptr<Linear> router;    // [experts, hidden]
  DeviceVector bias;                 // [experts]
  std::unique_ptr<Experts> experts;  // inter/T and hidden/T columns
  std::optional<SwiGlu> shared;
};

struct Layer {
  DeviceVector input_norm, post_norm;  // [hidden]
  std::unique_ptr<Linear> qkv;         // [(heads + 2·kv_heads)/T·128, hidden]
  std::unique_ptr<Linear> o;           // [hidden/T, heads·128]
  DeviceVector q_norm, k_norm;         // [128]
  std::optional<SwiGlu> dense;         // one of the two
  std::optional<Moe> moe;
};

struct Mtp {
  DeviceVector enorm, hnorm, final_norm;  // [hidden]
  std::unique_ptr<Linear> eh_proj;        // [hidden/T, 2·hidden]
  Layer layer;
};

struct Weights {
  std::unique_ptr<Table> embed;     // on the first stage, and on the last where there is an MTP layer
  std::vector<Layer> layers;        // of this stage
  DeviceVector norm;                // last stage
  std::unique_ptr<Linear> lm_head;  // last stage: [vocabulary/T, hidden]
  std::optional<Mtp> mtp;           // last stage, where wanted and there
};

/// Reads and packs a rank's part. `progress(done, total)` counts layers.
Result<Weights> load_weights(const Config& config, const TensorSource& source, const Placement& placement,
                             bool with_mtp, Ops& ops, ThreadPool& pool,
                             const std::function<void(int64_t, int64_t)>& progress);

}  // namespace tercet::hy_v3
