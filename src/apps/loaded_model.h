// From model options to something that runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/console.h"
#include "apps/options.h"
#include "engine/local_executor.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/inventory.h"
#include "weights/checkpoint.h"

namespace tercet {

/// What a command needs beyond the shared options.
struct RunLimits {
  int64_t cache_tokens = 0;  // that the KV cache holds, over all sequences
  int32_t max_rows = 512;    // of a step, where ModelOptions::chunk gives none
  bool mtp = false;
  bool digest = false;  // of the weights, taken while they are read
};

struct LoadedModel {
  hy_v3::Config config;
  std::unique_ptr<LocalExecutor> executor;
  std::string digest;  // of the weights, where it was asked for (HashedSource)
};

/// Reads config and weights, with a progress bar.
Result<LoadedModel> load_model(const ModelOptions& options, const RunLimits& limits, const Console& console);

/// A checkpoint that is opened but not read.
struct OpenedModel {
  Checkpoint checkpoint;
  hy_v3::Config config;
};

/// A path's checkpoint or a synthetic one. Errors of the config name its file.
Result<OpenedModel> open_model(const ModelOptions& options);

/// Where a model runs.
enum class BackendKind : uint8_t { cuda, cpu, reference };

/// What `--backend` means on this machine for that model. Errors: no GPU where one is asked for, ranks that
/// share one, and, before weights are read, too little memory, with what would fit.
Result<BackendKind> choose_backend(const ModelOptions& options, const OpenedModel& model,
                                   const hy_v3::RankLimits& limits);

/// `synchronous`: for who times single operations.
std::unique_ptr<Ops> make_ops(BackendKind kind, int threads, bool synchronous = false);

/// What the model consists of; names and shapes are read, no weights.
Result<std::vector<hy_v3::InventoryLine>> inventory_of(const OpenedModel& model);

/// The options' threads, or all that this process may use.
int thread_count(const ModelOptions& options);

}  // namespace tercet
