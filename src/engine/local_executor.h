// Runs steps on ranks that are threads of this process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "engine/executor.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/model.h"
#include "ops/ops.h"
#include "weights/tensor_source.h"

namespace tercet {

struct ExecutorOptions {
  std::vector<hy_v3::LayerRange> stages;  // of the pipeline; empty: one
  int shards = 1;                         // tensor shards of a stage
  int threads = 1;  // of a stage, since one waits for another; each shard gets its part, one at least
  hy_v3::RankLimits limits;
  std::function<std::unique_ptr<Ops>(size_t stage, int threads)> make_ops;  // called once a rank
  std::function<void(int64_t done, int64_t total)> progress;                // of loading; may be empty
};

class LocalExecutor final : public Executor {
 public:
  /// Loads the weights. Cost: reading the checkpoint once.
  static Result<std::unique_ptr<LocalExecutor>> load(const hy_v3::Config& config, const TensorSource& source,
                                                     const ExecutorOptions& options);
  ~LocalExecutor() override;

  StepResult run(const StepPlan& plan) override;
  int32_t vocabulary() const override;
  int32_t pages() const override;
  int32_t max_rows() const override;

  bool has_mtp() const;
  /// Bytes that all ranks hold: weights, cache, activations.
  int64_t allocated() const;

 private:
  struct Rank;
  explicit LocalExecutor(const hy_v3::Config& config, const hy_v3::RankLimits& limits, int ranks);

  const hy_v3::Config config_;
  const hy_v3::RankLimits limits_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // stage · shards + shard
  ThreadPool threads_;                        // one a rank: ranks wait for each other
};

}  // namespace tercet
