// From model options to something that runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/console.h"
#include "apps/options.h"
#include "apps/stage_plan.h"
#include "engine/local_executor.h"
#include "model/hy_v3/config.h"

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

/// A path's checkpoint or a synthetic one. Errors of the config name its file.
Result<OpenedModel> open_model(const ModelOptions& options);

std::unique_ptr<Ops> make_ops(BackendKind kind, int threads);

/// The options' threads, or all that this process may use.
int thread_count(const ModelOptions& options);

}  // namespace tercet
