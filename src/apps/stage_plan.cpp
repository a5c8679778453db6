#include "apps/stage_plan.h"

#include <algorithm>
#include <string>

#include "apps/numbers.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/hy_v3/tensor_names.h"

namespace tercet {
namespace {

class Planner {
 public:
  Planner(const ModelOptions& options, const OpenedModel& model, const hy_v3::RankLimits& limits,
          const Machine& machine)
      : options_(options),
        model_(model),
        limits_(limits),
        machine_(machine),
        layers_(model.config.num_layers) {}

  Result<std::vector<StagePlan>> plan() {
    TERCET_TRY_VOID(hy_v3::check_placement(model_.config, options_.pipeline_stages, options_.tensor_shards));
    const int64_t wanted = options_.gpu_layers;
    if (options_.backend == "cpu" || options_.backend == "reference") {
      if (wanted > 0) return fail("{}: --backend {} has no GPU", asked_by(), options_.backend);
      return on_host(options_.backend == "cpu" ? BackendKind::cpu : BackendKind::reference);
    }
    const bool must = options_.backend == "cuda" || wanted > 0;
    const Result<CudaDevice>& device = machine_.gpu;
    if (!device && must) return fail("{}: {}", asked_by(), device.error().message);
    const bool ranks = options_.pipeline_stages * options_.tensor_shards > 1;
    if (ranks && must) return fail("{}: one GPU is one rank; expected 1 stage and 1 shard", asked_by());
    if (!device || ranks || wanted == 0) return on_host(BackendKind::cpu);
    return on_gpu(*device, wanted, must);
  }

 private:
  std::string asked_by() const {
    if (options_.gpu_layers == kLayersThatFit) return "--backend cuda";
    return options_.gpu_layers == kAllLayers ? "-ngl all" : fmt::format("-ngl {}", options_.gpu_layers);
  }

  Result<hy_v3::MemoryPlan> memory_of(const hy_v3::LayerRange& layers) const {
    TERCET_TRY(const auto inventory, inventory_of(model_, layers));
    return hy_v3::plan_memory(model_.config, inventory, layers, tokens(), limits_.max_rows);
  }
  int64_t tokens() const { return int64_t{limits_.pages} * kPageTokens; }

  Result<std::vector<StagePlan>> on_host(BackendKind backend) const {
    TERCET_TRY_VOID(check_host(hy_v3::all_layers(model_.config)));
    std::vector<StagePlan> stages;
    for (const auto& layers : hy_v3::equal_stages(model_.config, options_.pipeline_stages)) {
      stages.push_back({backend, layers});
    }
    return stages;
  }

  Result<std::vector<StagePlan>> on_gpu(const CudaDevice& device, int64_t wanted, bool must) const {
    // What others hold counts against the share that is ours.
    const double share = options_.gpu_memory_utilization;
    const auto most = static_cast<int64_t>(share * static_cast<double>(device.memory));
    const int64_t available = std::max(int64_t{0}, most - (device.memory - device.free));
    TERCET_TRY(const int64_t fits, layers_within(available));
    const int64_t on_device = wanted == kLayersThatFit ? (must ? layers_ : fits) : std::min(wanted, layers_);
    if (on_device > fits) {
      TERCET_TRY(const hy_v3::MemoryPlan plan, memory_of({layers_ - on_device, layers_}));
      return fail("{}: {}, of {} available on the GPU (--gpu-memory-utilization {}): -ngl {} would fit",
                  asked_by(), needs(plan), readable(available), share, fits);
    }
    if (on_device < layers_ && wanted == kLayersThatFit) {
      log_warn("{} of {} layers fit on the GPU; the CPU runs the others", on_device, layers_);
    }
    if (on_device == 0) return on_host(BackendKind::cpu);
    if (on_device == layers_) return std::vector{StagePlan{BackendKind::cuda, {0, layers_}}};
    const int64_t border = layers_ - on_device;
    TERCET_TRY_VOID(check_host({0, border}));
    return std::vector{StagePlan{BackendKind::cpu, {0, border}},
                       StagePlan{BackendKind::cuda, {border, layers_}}};
  }

  /// How many of the last layers fit into so many bytes.
  Result<int64_t> layers_within(int64_t available) const {
    for (int64_t count = layers_; count > 0; --count) {
      TERCET_TRY(const hy_v3::MemoryPlan plan, memory_of({layers_ - count, layers_}));
      if (plan.total() <= available) return count;
    }
    return 0;
  }

  std::string needs(const hy_v3::MemoryPlan& plan) const {
    return fmt::format("{} needs {} of memory (weights {}, KV cache of {} tokens {}, scratch {})",
                       options_.model, readable(plan.total()), readable(plan.weights), tokens(),
                       readable(plan.cache), readable(plan.scratch));
  }

  Result<void> check_host(const hy_v3::LayerRange& layers) const {
    TERCET_TRY(const hy_v3::MemoryPlan plan, memory_of(layers));
    if (plan.total() <= machine_.memory) return {};
    const int64_t left = machine_.memory - plan.weights - plan.scratch;
    const std::string fits = left < plan.cache_per_token * kPageTokens
                                 ? std::string("even without a cache it does not fit")
                                 : fmt::format("a cache of {} tokens would fit",
                                               left / plan.cache_per_token / kPageTokens * kPageTokens);
    return fail("{}, {} are available on this machine: {}", needs(plan), readable(machine_.memory), fits);
  }

  const ModelOptions& options_;
  const OpenedModel& model_;
  const hy_v3::RankLimits& limits_;
  const Machine& machine_;
  const int64_t layers_;
};

}  // namespace

Machine this_machine() { return {cuda_device(), available_memory()}; }

Result<std::vector<StagePlan>> plan_stages(const ModelOptions& options, const OpenedModel& model,
                                           const hy_v3::RankLimits& limits, const Machine& machine) {
  return Planner(options, model, limits, machine).plan();
}

Result<std::vector<hy_v3::InventoryLine>> inventory_of(const OpenedModel& model,
                                                       const hy_v3::LayerRange& layers) {
  const TensorSource& tensors = *model.checkpoint.tensors;
  TERCET_TRY(const hy_v3::ModelNames names, hy_v3::resolve_names(model.config, tensors));
  return hy_v3::take_inventory(model.config, names, tensors, layers);
}

}  // namespace tercet
