#include "ops/profiled_ops.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "ops/forwarding_ops.h"

namespace tercet {
namespace {

struct Work {
  int64_t bytes = 0;
  int64_t products = 0;
};

Work linear_work(const Linear& w, int64_t rows) { return {w.bytes, rows * w.n * w.k}; }

/// Every sequence's cache up to its last row, once; a row's products are with what it sees.
Work attention_work(const Batch& batch, const KvCache& cache, int64_t heads) {
  const int64_t position_bytes = kv_cache_bytes(1, cache.heads, 1) / kPageTokens;
  Work work;
  for (const SequenceRows& s : batch.sequences) {
    const int64_t first = s.position;
    work.bytes += (first + s.rows) * position_bytes;
    work.products += heads * 2 * kHeadSize * (s.rows * first + int64_t{s.rows} * (s.rows + 1) / 2);
  }
  return work;
}

class ProfiledOps final : public ForwardingOps {
 public:
  ProfiledOps(std::unique_ptr<Ops> inner, Profile& profile)
      : ForwardingOps(std::move(inner)), profile_(profile) {}

  std::unique_ptr<Step> begin(const Batch& batch) override {
    std::unique_ptr<Step> step = inner_->begin(batch);
    if (profile_.what == Profiling::time) inner_->mark();
    return step;
  }
  std::vector<uint8_t> failed(Step& step) override {
    std::vector<uint8_t> flags = inner_->failed(step);
    if (profile_.what == Profiling::time) add_laps();
    return flags;
  }
  void embed(Step& step, std::span<const int32_t> tokens, const Table& table, Rows x) override {
    const int64_t row_bytes = table.bytes / std::max<int64_t>(1, table.vocabulary);
    run(ModelPart::embedding, {static_cast<int64_t>(tokens.size()) * row_bytes, 0},
        [&] { inner_->embed(step, tokens, table, x); });
  }
  void norm(Step& step, Rows x, Vector weight, float eps, Rows h) override {
    run(ModelPart::norms, vector_work(weight), [&] { inner_->norm(step, x, weight, eps, h); });
  }
  void add_norm(Step& step, Rows x, Rows z, Vector weight, float eps, Rows h) override {
    run(ModelPart::norms, vector_work(weight), [&] { inner_->add_norm(step, x, z, weight, eps, h); });
  }
  void linear(Step& step, Rows h, const Linear& weights, Rows y) override {
    run(part_of_linear(), linear_work(weights, h.rows), [&] { inner_->linear(step, h, weights, y); });
  }
  void linear_of(Step& step, Rows h, std::span<const int32_t> rows, const Linear& weights, Rows y) override {
    run(ModelPart::lm_head, linear_work(weights, y.rows),
        [&] { inner_->linear_of(step, h, rows, weights, y); });
  }
  void write_kv(Step& step, Rows qkv, Vector q_norm, Vector k_norm, float eps, RopeParams rope,
                KvCache& cache, int32_t layer) override {
    run(ModelPart::write_kv, vector_work(q_norm),
        [&] { inner_->write_kv(step, qkv, q_norm, k_norm, eps, rope, cache, layer); });
  }
  void attention(Step& step, Rows qkv, const KvCache& cache, int32_t layer, Rows out) override {
    run(ModelPart::attention, attention_work(step.batch, cache, out.cols / kHeadSize),
        [&] { inner_->attention(step, qkv, cache, layer, out); });
  }
  void gate_up(Step& step, Rows h, const Linear& weights, Rows a) override {
    const bool shared = before_ == ModelPart::router;
    run(shared ? ModelPart::shared_gate_up : ModelPart::dense_gate_up, linear_work(weights, h.rows),
        [&] { inner_->gate_up(step, h, weights, a); });
  }
  void route(Step& step, Rows h, const Linear& router, Vector bias, RouterParams params,
             Routes routes) override {
    run(ModelPart::router, linear_work(router, h.rows),
        [&] { inner_->route(step, h, router, bias, params, routes); });
    if (profile_.what == Profiling::work) count_experts(routes);
  }
  void experts_gate_up(Step& step, Rows h, const Routes& routes, const Experts& experts, Rows a) override {
    run(ModelPart::experts_gate_up, experts_work(experts, routes, gate_up_size(experts)),
        [&] { inner_->experts_gate_up(step, h, routes, experts, a); });
  }
  void experts_down(Step& step, Rows a, const Routes& routes, const Experts& experts, Rows shared,
                    Rows z) override {
    run(ModelPart::experts_down, experts_work(experts, routes, down_size(experts)),
        [&] { inner_->experts_down(step, a, routes, experts, shared, z); });
  }
  void mtp_input(Step& step, std::span<const int32_t> next, const Table& table, Rows hidden, Vector enorm,
                 Vector hnorm, float eps, Rows out) override {
    run(ModelPart::mtp_input, vector_work(enorm),
        [&] { inner_->mtp_input(step, next, table, hidden, enorm, hnorm, eps, out); });
  }
  std::vector<RowResult> evaluate(Step& step, Rows logits, std::span<const RowOutput> outputs) override {
    std::vector<RowResult> results;
    run(ModelPart::draw, {}, [&] { results = inner_->evaluate(step, logits, outputs); });
    return results;
  }

 private:
  static Work vector_work(Vector v) { return {v.size * static_cast<int64_t>(sizeof(float)), 0}; }
  static int64_t gate_up_size(const Experts& e) { return 2 * e.inter * e.hidden; }
  static int64_t down_size(const Experts& e) { return e.out * e.down_k; }

  /// Of the products with matrices of `size` weights, an expert's part. Gate, up and down share its bytes by
  /// their sizes.
  Work experts_work(const Experts& e, const Routes& routes, int64_t size) const {
    const double part = static_cast<double>(size) / static_cast<double>(gate_up_size(e) + down_size(e));
    const double met = static_cast<double>(distinct_) / static_cast<double>(e.count);
    return {static_cast<int64_t>(static_cast<double>(e.bytes) * part * met),
            routes.rows * routes.chosen * size};
  }

  /// A layer calls linear() three times; what came before tells them apart.
  ModelPart part_of_linear() const {
    if (before_ == ModelPart::attention) return ModelPart::attention_out;
    if (before_ == ModelPart::dense_gate_up) return ModelPart::dense_down;
    if (before_ == ModelPart::shared_gate_up) return ModelPart::shared_down;
    return before_ == ModelPart::mtp_input ? ModelPart::mtp_input : ModelPart::qkv;
  }

  void count_experts(const Routes& routes) {
    chosen_.resize(static_cast<size_t>(routes.rows * routes.chosen));
    inner_->download(chosen_.data(), routes.experts, static_cast<int64_t>(chosen_.size() * sizeof(int32_t)));
    std::sort(chosen_.begin(), chosen_.end());
    distinct_ = std::unique(chosen_.begin(), chosen_.end()) - chosen_.begin();
  }

  /// Of a step, which has ended.
  void add_laps() {
    const std::vector<Lap> laps = inner_->laps();
    TERCET_CHECK_EQ(laps.size(), marked_.size());
    for (size_t i = 0; i < laps.size(); ++i) {
      PartCost& cost = profile_.parts[static_cast<size_t>(marked_[i])];
      cost.seconds += laps[i].seconds;
      cost.kernels += laps[i].kernels;
    }
    marked_.clear();
  }

  template <class Call>
  void run(ModelPart part, Work work, const Call& call) {
    before_ = part;
    PartCost& cost = profile_.parts[static_cast<size_t>(part)];
    if (profile_.what == Profiling::work) {
      ++cost.calls;
      cost.bytes += work.bytes;
      cost.products += work.products;
    }
    if (profile_.what != Profiling::time) return call();
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (inner_->mark()) {
      marked_.push_back(part);
    } else {
      cost.seconds += seconds.count();
    }
  }

  Profile& profile_;
  ModelPart before_ = ModelPart::draw;
  std::vector<int32_t> chosen_;
  int64_t distinct_ = 0;           // experts in the last routes
  std::vector<ModelPart> marked_;  // in this step
};

}  // namespace

std::string_view part_name(ModelPart part) {
  constexpr std::array<std::string_view, kModelParts> kNames = {
      "embedding",  "norms",  "qkv",       "head norms, RoPE", "attention",  "attention out", "dense up",
      "dense down", "router", "shared up", "shared down",      "experts up", "experts down",  "MTP input",
      "lm_head",    "draw"};
  return kNames[static_cast<size_t>(part)];
}

PartCost Profile::total() const {
  PartCost sum;
  for (const PartCost& part : parts) {
    sum.calls += part.calls;
    sum.bytes += part.bytes;
    sum.products += part.products;
    sum.seconds += part.seconds;
    sum.kernels += part.kernels;
  }
  return sum;
}

std::unique_ptr<Ops> make_profiled_ops(std::unique_ptr<Ops> inner, Profile& profile) {
  return std::make_unique<ProfiledOps>(std::move(inner), profile);
}

}  // namespace tercet
