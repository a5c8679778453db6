#include "apps/loaded_model.h"

#include <string>

#include "apps/verified_devices.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/reference/reference_ops.h"
#include "base/check.h"
#include "base/log.h"
#include "base/threads.h"
#include "model/hy_v3/synthetic_model.h"
#include "weights/checkpoint.h"
#include "weights/hashed_source.h"

namespace tercet {

int thread_count(const ModelOptions& options) {
  return options.threads > 0 ? options.threads : available_threads();
}

Result<OpenedModel> open_model(const ModelOptions& options) {
  constexpr uint64_t kSyntheticSeed = 0;  // golden digests are of this seed
  OpenedModel model;
  const bool synthetic = hy_v3::is_synthetic(options.model);
  TERCET_TRY(model.checkpoint,
             synthetic ? hy_v3::parse_synthetic(options.model, kSyntheticSeed, thread_count(options))
                       : open_checkpoint(options.model));
  auto config = hy_v3::parse_config(model.checkpoint.config_json);
  if (!config) return fail("{}: config.json: {}", options.model, config.error().message);
  model.config = std::move(*config);
  return model;
}

namespace {

/// What was found on the GPU of this machine earlier.
std::optional<bool> verified_here() {
  const auto file = verified_devices_file();
  const Result<CudaDevice> device = cuda_device();
  return file && device ? read_verdict(*file, *device) : std::nullopt;
}

}  // namespace

std::unique_ptr<Ops> make_ops(BackendKind kind, int threads) {
  if (kind == BackendKind::reference) return make_reference_ops(threads);
  if (kind == BackendKind::cpu) return make_cpu_ops(threads);
  Result<std::unique_ptr<Ops>> ops = make_cuda_ops({.threads = threads, .verified = verified_here()});
  TERCET_CHECK(ops.has_value());  // plan_stages() saw the device
  return std::move(*ops);
}

Result<LoadedModel> load_model(const ModelOptions& options, const RunLimits& limits, const Console& console) {
  if (options.verbose) set_log_level(LogLevel::info);
  TERCET_TRY(const OpenedModel opened, open_model(options));
  LoadedModel model;
  model.config = opened.config;
  Progress progress(console, "loading", 1000);
  ExecutorOptions executor;
  executor.shards = options.tensor_shards;
  executor.threads = thread_count(options);
  executor.limits.max_rows = options.chunk > 0 ? options.chunk : limits.max_rows;
  executor.limits.pages = static_cast<int32_t>((limits.cache_tokens + kPageTokens - 1) / kPageTokens);
  executor.limits.mtp = limits.mtp;
  TERCET_TRY(const std::vector<StagePlan> stages,
             plan_stages(options, opened, executor.limits, this_machine()));
  for (const StagePlan& stage : stages) executor.stages.push_back(stage.layers);
  executor.make_ops = [&](size_t stage, int threads) { return make_ops(stages[stage].backend, threads); };
  executor.progress = [&](int64_t done, int64_t total) { progress.update(done * 1000 / total); };
  const HashedSource hashed(opened.checkpoint.tensors, limits.digest ? executor.threads : 1);
  const TensorSource& tensors = limits.digest ? hashed : *opened.checkpoint.tensors;
  TERCET_TRY(model.executor, LocalExecutor::load(model.config, tensors, executor));
  if (limits.digest) model.digest = hashed.digest();
  return model;
}

}  // namespace tercet
