#include "apps/loaded_model.h"

#include <string>

#include "apps/numbers.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/reference/reference_ops.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"
#include "model/hy_v3/synthetic_model.h"
#include "model/hy_v3/tensor_names.h"
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

Result<std::vector<hy_v3::InventoryLine>> inventory_of(const OpenedModel& model) {
  const TensorSource& tensors = *model.checkpoint.tensors;
  TERCET_TRY(const hy_v3::ModelNames names, hy_v3::resolve_names(model.config, tensors));
  return hy_v3::take_inventory(model.config, names, tensors);
}

namespace {

/// Refuses, before weights are read, what will not fit into the bytes that are left `where`, and says what
/// would.
Result<void> check_memory(const OpenedModel& model, const ModelOptions& options,
                          const hy_v3::RankLimits& limits, int64_t available, const std::string& where) {
  TERCET_TRY(const auto inventory, inventory_of(model));
  const int64_t tokens = int64_t{limits.pages} * kPageTokens;
  const hy_v3::MemoryPlan plan = hy_v3::plan_memory(model.config, inventory, tokens, limits.max_rows);
  if (plan.total() <= available) return {};
  const int64_t left = available - plan.weights - plan.scratch;
  const std::string fits = left < plan.cache_per_token * kPageTokens
                               ? std::string("even without a cache it does not fit")
                               : fmt::format("a cache of {} tokens would fit",
                                             left / plan.cache_per_token / kPageTokens * kPageTokens);
  return fail(
      "{}: needs {} of memory (weights {}, KV cache of {} tokens {}, scratch {}), {} are available {}: {}",
      options.model, readable(plan.total()), readable(plan.weights), tokens, readable(plan.cache),
      readable(plan.scratch), readable(available), where, fits);
}

}  // namespace

Result<BackendKind> choose_backend(const ModelOptions& options, const OpenedModel& model,
                                   const hy_v3::RankLimits& limits) {
  const auto on_this_machine = [&](BackendKind kind) -> Result<BackendKind> {
    TERCET_TRY_VOID(check_memory(model, options, limits, available_memory(), "on this machine"));
    return kind;
  };
  if (options.backend == "cpu") return on_this_machine(BackendKind::cpu);
  if (options.backend == "reference") return on_this_machine(BackendKind::reference);
  const bool must = options.backend == "cuda";
  const Result<CudaDevice> device = cuda_device();
  if (!device) {
    if (must) return fail("--backend cuda: {}", device.error().message);
    return on_this_machine(BackendKind::cpu);
  }
  if (options.pipeline_stages * options.tensor_shards > 1) {
    if (must) return fail("--backend cuda: one GPU is one rank; expected 1 stage and 1 shard");
    return on_this_machine(BackendKind::cpu);
  }
  // What the allocator and other processes take beside it stays free.
  const Result<void> fits = check_memory(model, options, limits, device->free / 10 * 9, "on the GPU");
  if (!fits) {
    if (must) return fail("--backend cuda: {}", fits.error().message);
    log_warn("not on the GPU: {}", fits.error().message);
    return on_this_machine(BackendKind::cpu);
  }
  return BackendKind::cuda;
}

std::unique_ptr<Ops> make_ops(BackendKind kind, int threads, bool synchronous) {
  if (kind == BackendKind::reference) return make_reference_ops(threads);
  if (kind == BackendKind::cpu) return make_cpu_ops(threads);
  Result<std::unique_ptr<Ops>> ops = make_cuda_ops({.synchronous = synchronous});
  TERCET_CHECK(ops.has_value());  // choose_backend() saw the device
  return std::move(*ops);
}

Result<LoadedModel> load_model(const ModelOptions& options, const RunLimits& limits, const Console& console) {
  if (options.verbose) set_log_level(LogLevel::info);
  TERCET_TRY(const OpenedModel opened, open_model(options));
  LoadedModel model;
  model.config = opened.config;
  Progress progress(console, "loading", 1000);
  ExecutorOptions executor;
  executor.stages = options.pipeline_stages;
  executor.shards = options.tensor_shards;
  executor.threads = thread_count(options);
  executor.limits.max_rows = options.chunk > 0 ? options.chunk : limits.max_rows;
  executor.limits.pages = static_cast<int32_t>((limits.cache_tokens + kPageTokens - 1) / kPageTokens);
  executor.limits.mtp = limits.mtp;
  TERCET_TRY(const BackendKind backend, choose_backend(options, opened, executor.limits));
  executor.make_ops = [backend](int threads) { return make_ops(backend, threads); };
  executor.progress = [&](int64_t done, int64_t total) { progress.update(done * 1000 / total); };
  const HashedSource hashed(opened.checkpoint.tensors);
  const TensorSource& tensors = limits.digest ? hashed : *opened.checkpoint.tensors;
  TERCET_TRY(model.executor, LocalExecutor::load(model.config, tensors, executor));
  if (limits.digest) model.digest = hashed.digest();
  return model;
}

}  // namespace tercet
