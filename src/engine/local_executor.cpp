#include "engine/local_executor.h"

#include <algorithm>

#include "base/check.h"
#include "comm/local/local.h"
#include "comm/local/through_host.h"

namespace tercet {

struct LocalExecutor::Rank {
  hy_v3::Placement placement;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Communicator> shards, stages;
  std::unique_ptr<hy_v3::Model> model;
};

LocalExecutor::LocalExecutor(const hy_v3::Config& config, const hy_v3::RankLimits& limits, int ranks)
    : config_(config), limits_(limits), threads_(ranks) {}

LocalExecutor::~LocalExecutor() = default;

Result<std::unique_ptr<LocalExecutor>> LocalExecutor::load(const hy_v3::Config& config,
                                                           const TensorSource& source,
                                                           const ExecutorOptions& options) {
  std::vector<hy_v3::LayerRange> layers = options.stages;
  if (layers.empty()) layers = {hy_v3::all_layers(config)};
  const int stages = static_cast<int>(layers.size());
  TERCET_TRY_VOID(hy_v3::check_placement(config, stages, options.shards));
  const int count = stages * options.shards;
  std::unique_ptr<LocalExecutor> executor(new LocalExecutor(config, options.limits, count));
  std::vector<std::vector<std::unique_ptr<Communicator>>> stage_groups;  // [shard][stage]
  for (int shard = 0; shard < options.shards; ++shard) stage_groups.push_back(make_local_group(stages));
  ThreadPool pool(options.threads);
  for (int stage = 0; stage < stages; ++stage) {
    auto shard_group = make_local_group(options.shards);
    for (int shard = 0; shard < options.shards; ++shard) {
      auto rank = std::make_unique<Rank>();
      const auto at = static_cast<size_t>(stage);
      rank->placement = {layers[at], stage, stages, shard, options.shards};
      rank->ops = options.make_ops(at, std::max(1, options.threads / options.shards));
      rank->shards = through_host(std::move(shard_group[static_cast<size_t>(shard)]), *rank->ops);
      rank->stages = through_host(std::move(stage_groups[static_cast<size_t>(shard)][at]), *rank->ops);
      const auto progress = [&](int64_t done, int64_t total) {
        const int64_t before = static_cast<int64_t>(executor->ranks_.size()) * total;
        if (options.progress) options.progress(before + done, total * count);
      };
      TERCET_TRY(rank->model, hy_v3::Model::load(executor->config_, source, rank->placement, options.limits,
                                                 *rank->ops, *rank->shards, *rank->stages, pool, progress));
      executor->ranks_.push_back(std::move(rank));
    }
  }
  return executor;
}

StepResult LocalExecutor::run(const StepPlan& plan) {
  const auto rows = static_cast<size_t>(plan.batch.rows());
  TERCET_CHECK_LE(plan.batch.rows(), limits_.max_rows);
  TERCET_CHECK(plan.next.empty() || plan.next.size() == rows);
  StepResult result;
  std::vector<std::vector<uint8_t>> failed(ranks_.size());
  threads_.parallel_for(static_cast<int64_t>(ranks_.size()), 1, [&](int64_t i, int64_t) {
    Rank& rank = *ranks_[static_cast<size_t>(i)];
    rank.ops->copy_pages(rank.model->cache(), plan.copies);
    const std::unique_ptr<Step> step = rank.ops->begin(plan.batch);
    std::vector<RowResult> own = rank.model->forward(*step, plan.outputs);
    std::vector<RowResult> mtp;
    if (!plan.next.empty() && rank.placement.last_stage()) {
      mtp = rank.model->forward_mtp(*step, plan.next, plan.mtp_outputs);
    }
    failed[static_cast<size_t>(i)] = rank.ops->failed(*step);
    if (!rank.placement.last_stage() || rank.placement.shard != 0) return;
    result.rows = std::move(own);
    result.mtp_rows = std::move(mtp);
  });

  // A rank sees only the failures of its own part; a row's failure spoils what comes after it in its
  // sequence.
  result.failed.assign(plan.batch.sequences.size(), 0);
  std::vector<uint8_t> spoiled(rows, 0);
  for (size_t s = 0; s < plan.batch.sequences.size(); ++s) {
    const SequenceRows& sequence = plan.batch.sequences[s];
    for (int32_t r = sequence.first_row; r < sequence.first_row + sequence.rows; ++r) {
      for (const auto& flags : failed) result.failed[s] |= flags[static_cast<size_t>(r)];
      spoiled[static_cast<size_t>(r)] = result.failed[s];
    }
  }
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    result.rows[i].failed |= spoiled[static_cast<size_t>(plan.outputs[i].row)] != 0;
  }
  for (size_t i = 0; i < plan.mtp_outputs.size(); ++i) {
    result.mtp_rows[i].failed |= spoiled[static_cast<size_t>(plan.mtp_outputs[i].row)] != 0;
  }
  return result;
}

int32_t LocalExecutor::vocabulary() const { return static_cast<int32_t>(config_.vocab_size); }
int32_t LocalExecutor::pages() const { return limits_.pages; }
int32_t LocalExecutor::max_rows() const { return limits_.max_rows; }
bool LocalExecutor::has_mtp() const { return ranks_.back()->model->has_mtp(); }

int64_t LocalExecutor::allocated() const {
  int64_t total = 0;
  for (const auto& rank : ranks_) total += rank->ops->allocated();
  return total;
}

}  // namespace tercet
