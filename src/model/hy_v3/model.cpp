#include "model/hy_v3/model.h"

#include <algorithm>

#include "base/check.h"

namespace tercet::hy_v3 {

Result<std::unique_ptr<Model>> Model::load(const Config& config, const TensorSource& source,
                                           const Placement& placement, const RankLimits& limits, Ops& ops,
                                           Communicator& shards, Communicator& stages, ThreadPool& pool,
                                           const std::function<void(int64_t, int64_t)>& progress) {
  std::unique_ptr<Model> model(new Model(config, placement, ops, shards, stages));
  TERCET_TRY(model->weights_, load_weights(config, source, placement, limits.mtp, ops, pool, progress));
  const auto layers = static_cast<int32_t>(model->weights_.layers.size()) + (model->has_mtp() ? 1 : 0);
  model->cache_ =
      ops.make_cache(layers, static_cast<int32_t>(placement.share(config.num_kv_heads)), limits.pages);
  model->memory_ = allocate_activations(config, placement, limits.max_rows, model->has_mtp(), ops);
  return model;
}

std::vector<RowResult> Model::forward(Step& step, std::span<const RowOutput> outputs) {
  TERCET_CHECK_LE(step.batch.rows(), memory_.view.x.rows);
  Activations rows = memory_.view.first(step.batch.rows());
  if (placement_.first_stage()) {
    ops_.embed(step, step.batch.tokens, *weights_.embed, rows.x);
  } else {
    stages_.recv(rows.x, placement_.stage - 1);
  }
  ops_.norm(step, rows.x, weights_.layers.front().input_norm.view(), config_.rms_norm_eps, rows.h);

  const LayerContext context{config_, ops_, shards_, *cache_, step, rows};
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const bool last_here = i + 1 == weights_.layers.size();
    const DeviceVector& next = last_here ? weights_.norm : weights_.layers[i + 1].input_norm;
    decoder_layer(context, weights_.layers[i], static_cast<int32_t>(i), next.view());
  }
  if (placement_.last_stage()) return evaluate(step, rows.h, outputs);
  stages_.send(rows.x, placement_.stage + 1);
  return {};
}

std::vector<RowResult> Model::forward_mtp(Step& step, std::span<const int32_t> next,
                                          std::span<const RowOutput> outputs) {
  TERCET_CHECK(has_mtp());
  const Mtp& w = *weights_.mtp;
  Activations rows = memory_.view.first(step.batch.rows());
  const float eps = config_.rms_norm_eps;
  std::swap(rows.h, rows.hidden);  // forward() left the model's normed state in h
  ops_.mtp_input(step, next, *weights_.embed, rows.hidden, w.enorm.view(), w.hnorm.view(), eps, rows.pair);
  ops_.linear(step, rows.pair, *w.eh_proj, rows.mtp_x.mine);
  shards_.all_gather(rows.mtp_x.mine, rows.mtp_x.all);
  rows.x = rows.mtp_x.all;
  ops_.norm(step, rows.x, w.layer.input_norm.view(), eps, rows.h);
  const LayerContext context{config_, ops_, shards_, *cache_, step, rows};
  decoder_layer(context, w.layer, static_cast<int32_t>(weights_.layers.size()), w.final_norm.view());
  return evaluate(step, rows.h, outputs);
}

std::vector<RowResult> Model::evaluate(Step& step, Rows h, std::span<const RowOutput> outputs) {
  std::vector<RowResult> results;
  results.reserve(outputs.size());
  const auto at_a_time = static_cast<size_t>(memory_.view.logits.all.rows);
  std::vector<int32_t> ids;
  while (results.size() < outputs.size()) {
    const auto part = outputs.subspan(results.size(), std::min(at_a_time, outputs.size() - results.size()));
    const Sharded logits = memory_.view.logits.first(static_cast<int64_t>(part.size()));
    ids.clear();
    for (const RowOutput& output : part) ids.push_back(output.row);
    ops_.linear_of(step, h, ids, *weights_.lm_head, logits.mine);
    shards_.all_gather(logits.mine, logits.all);
    for (RowResult& result : ops_.evaluate(step, logits.all, part)) results.push_back(std::move(result));
  }
  return results;
}

}  // namespace tercet::hy_v3
