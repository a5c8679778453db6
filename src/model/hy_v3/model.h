// One rank's part of the model: weights, KV cache and the rows of a step.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/threads.h"
#include "comm/communicator.h"
#include "model/hy_v3/activations.h"
#include "model/hy_v3/layer.h"
#include "model/hy_v3/weights.h"
#include "ops/ops.h"

namespace tercet::hy_v3 {

/// What one rank allocates at start.
struct RankLimits {
  int32_t max_rows = 512;  // of a step
  int32_t pages = 0;       // of the KV cache
  bool mtp = false;        // load the MTP layer, where the checkpoint has one
};

class Model {
 public:
  /// All arguments by reference must outlive the model. Rank order of `shards` and `stages` is the
  /// placement's.
  static Result<std::unique_ptr<Model>> load(const Config& config, const TensorSource& source,
                                             const Placement& placement, const RankLimits& limits, Ops& ops,
                                             Communicator& shards, Communicator& stages, ThreadPool& pool,
                                             const std::function<void(int64_t, int64_t)>& progress);

  /// One step. The last stage returns the results, in the order of `outputs`; earlier stages return none.
  std::vector<RowResult> forward(Step& step, std::span<const RowOutput> outputs);

  /// The MTP layer over the same step, after forward(): row i meets the embedding of next[i] and the model's
  /// last normed state. Last stage only.
  std::vector<RowResult> forward_mtp(Step& step, std::span<const int32_t> next,
                                     std::span<const RowOutput> outputs);

  bool has_mtp() const { return weights_.mtp.has_value(); }
  KvCache& cache() { return *cache_; }

 private:
  Model(const Config& config, const Placement& placement, Ops& ops, Communicator& shards,
        Communicator& stages)
      : config_(config), placement_(placement), ops_(ops), shards_(shards), stages_(stages) {}

  std::vector<RowResult> evaluate(Step& step, Rows h, std::span<const RowOutput> outputs);

  const Config& config_;
  const Placement placement_;
  Ops& ops_;
  Communicator& shards_;
  Communicator& stages_;
  Weights weights_;
  std::unique_ptr<KvCache> cache_;  // this stage's layers, then the MTP layer
  ActivationMemory memory_;
};

}  // namespace tercet::hy_v3
