// Which backend of this machine runs which layers of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "apps/options.h"
#include "backend/cuda/cuda_ops.h"
#include "engine/local_executor.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/inventory.h"
#include "model/hy_v3/placement.h"
#include "weights/checkpoint.h"

namespace tercet {

/// A checkpoint that is opened but not read.
struct OpenedModel {
  Checkpoint checkpoint;
  hy_v3::Config config;
};

enum class BackendKind : uint8_t { cuda, cpu, reference };

struct StagePlan {
  BackendKind backend = BackendKind::cpu;
  hy_v3::LayerRange layers;
};

/// What there is to run on.
struct Machine {
  Result<CudaDevice> gpu;
  int64_t memory = 0;  // bytes that the CPU may take
};
Machine this_machine();

/// The stages in order. A GPU takes the last layers: all, those of `-ngl`, or as many as fit; the CPU the
/// rest. Errors, before weights are read: no GPU where one is asked for, ranks that share one, too little
/// memory, with what would fit.
Result<std::vector<StagePlan>> plan_stages(const ModelOptions& options, const OpenedModel& model,
                                           const hy_v3::RankLimits& limits, const Machine& machine);

/// What these layers consist of; names and shapes are read, no weights.
Result<std::vector<hy_v3::InventoryLine>> inventory_of(const OpenedModel& model,
                                                       const hy_v3::LayerRange& layers);

}  // namespace tercet
