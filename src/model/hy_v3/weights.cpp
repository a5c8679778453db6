#include "model/hy_v3/weights.h"

#include <chrono>

#include "base/log.h"
#include "model/hy_v3/experts.h"
#include "model/hy_v3/tensor_names.h"
#include "weights/matrix.h"

namespace tercet::hy_v3 {
namespace {

class Loader {
 public:
  Loader(const Config& config, const TensorSource& source, const Placement& placement, Ops& ops,
         ThreadPool& pool)
      : config_(config), source_(source), placement_(placement), ops_(ops), pool_(pool) {}

  Result<DeviceVector> vector(const std::string& name, int64_t size) {
    TERCET_TRY(const std::vector<float> values, load_vector(source_, name, size));
    return upload(values);
  }

  /// A whole matrix, of which the shard keeps its outputs.
  Result<MatrixData> shard(const std::string& name, int64_t n, int64_t k) {
    TERCET_TRY(const MatrixData whole, matrix(name, n, k));
    return own(whole);
  }

  Result<std::unique_ptr<Linear>> linear(const std::string& name, int64_t n, int64_t k) {
    TERCET_TRY(const MatrixData part, shard(name, n, k));
    return ops_.pack_linear({&part, 1});
  }

  Result<std::unique_ptr<Table>> table(const std::string& name) {
    TERCET_TRY(const MatrixData whole, matrix(name, config_.vocab_size, config_.hidden_size));
    return ops_.pack_table(whole);
  }

  Result<SwiGlu> swiglu(const SwiGluNames& names, int64_t inter) {
    TERCET_TRY(const MatrixData gate, shard(names.gate, inter, config_.hidden_size));
    TERCET_TRY(const MatrixData up, shard(names.up, inter, config_.hidden_size));
    SwiGlu out;
    const MatrixData both[] = {gate, up};
    out.gate_up = ops_.pack_linear(both);
    TERCET_TRY(out.down, linear(names.down, config_.hidden_size, inter));
    return out;
  }

  Result<Moe> moe(const MoeNames& names) {
    Moe out;
    TERCET_TRY(const MatrixData router, matrix(names.router, config_.num_experts, config_.hidden_size));
    out.router = ops_.pack_linear({&router, 1});
    if (names.expert_bias.empty()) {
      out.bias = upload(std::vector<float>(static_cast<size_t>(config_.num_experts), 0.0F));
    } else {
      TERCET_TRY(out.bias, vector(names.expert_bias, config_.num_experts));
    }
    TERCET_TRY(ExpertMatrices experts, load_experts(source_, config_, names.experts, pool_));
    for (auto* matrices : {&experts.gate, &experts.up, &experts.down}) {
      for (MatrixData& data : *matrices) data = own(data);
    }
    out.experts = ops_.pack_experts(experts.gate, experts.up, experts.down);
    if (names.shared) {
      TERCET_TRY(out.shared, swiglu(*names.shared, config_.shared_intermediate_size()));
    }
    return out;
  }

  Result<Layer> layer(const LayerNames& names) {
    const int64_t hidden = config_.hidden_size;
    Layer out;
    TERCET_TRY(out.input_norm, vector(names.input_norm, hidden));
    TERCET_TRY(out.post_norm, vector(names.post_norm, hidden));
    TERCET_TRY(const MatrixData q, shard(names.q, config_.q_size(), hidden));
    TERCET_TRY(const MatrixData k, shard(names.k, config_.kv_size(), hidden));
    TERCET_TRY(const MatrixData v, shard(names.v, config_.kv_size(), hidden));
    const MatrixData stacked[] = {q, k, v};
    out.qkv = ops_.pack_linear(stacked);
    TERCET_TRY(out.o, linear(names.o, hidden, config_.q_size()));
    TERCET_TRY(out.q_norm, vector(names.q_norm, kHeadDim));
    TERCET_TRY(out.k_norm, vector(names.k_norm, kHeadDim));
    if (names.dense) {
      TERCET_TRY(out.dense, swiglu(*names.dense, config_.intermediate_size));
    } else {
      TERCET_TRY(out.moe, moe(*names.moe));
    }
    return out;
  }

  Result<Mtp> mtp(const MtpNames& names) {
    const int64_t hidden = config_.hidden_size;
    Mtp out;
    TERCET_TRY(out.enorm, vector(names.enorm, hidden));
    TERCET_TRY(out.hnorm, vector(names.hnorm, hidden));
    TERCET_TRY(out.final_norm, vector(names.final_norm, hidden));
    TERCET_TRY(out.eh_proj, linear(names.eh_proj, hidden, 2 * hidden));
    TERCET_TRY(out.layer, layer(names.layer));
    return out;
  }

 private:
  Result<MatrixData> matrix(const std::string& name, int64_t n, int64_t k) {
    return load_matrix(source_, name, n, k, config_.quantization, pool_);
  }

  MatrixData own(const MatrixData& whole) const {
    const int64_t count = placement_.share(whole.n);
    return whole.rows(placement_.shard * count, count);
  }

  DeviceVector upload(const std::vector<float>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    DeviceVector out{ops_.allocate(bytes), static_cast<int64_t>(values.size())};
    ops_.upload(out.buffer.get(), values.data(), bytes);
    return out;
  }

  const Config& config_;
  const TensorSource& source_;
  const Placement& placement_;
  Ops& ops_;
  ThreadPool& pool_;
};

}  // namespace

Result<Weights> load_weights(const Config& config, const TensorSource& source, const Placement& placement,
                             bool with_mtp, Ops& ops, ThreadPool& pool,
                             const std::function<void(int64_t, int64_t)>& progress) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  TERCET_TRY(const ModelNames names, resolve_names(config, source));
  Loader loader(config, source, placement, ops, pool);
  const bool mtp_here = with_mtp && placement.last_stage() && names.mtp.has_value();
  Weights out;
  if (placement.first_stage() || mtp_here) {
    TERCET_TRY(out.embed, loader.table(names.embed));
  }
  const auto [begin, end] = placement.layers;
  for (int64_t i = begin; i < end; ++i) {
    progress(i - begin, end - begin);
    TERCET_TRY(Layer layer, loader.layer(names.layers[static_cast<size_t>(i)]));
    out.layers.push_back(std::move(layer));
  }
  if (placement.last_stage()) {
    TERCET_TRY(out.norm, loader.vector(names.norm, config.hidden_size));
    const std::string& head = config.tied_embeddings ? names.embed : names.lm_head;
    TERCET_TRY(out.lm_head, loader.linear(head, config.vocab_size, config.hidden_size));
  }
  if (mtp_here) {
    TERCET_TRY(out.mtp, loader.mtp(*names.mtp));
  }
  ops.wait();
  progress(end - begin, end - begin);
  log_info("weights of {} layers loaded in {:.3f} s", end - begin,
           std::chrono::duration<double>(Clock::now() - start).count());
  return out;
}

}  // namespace tercet::hy_v3
