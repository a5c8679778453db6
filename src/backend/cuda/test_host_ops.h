// Operations of a device on rows in plain memory, for tests that compare them with those of the host.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace tercet::cuda {

/// Every call copies what it reads to the device and back what it writes. Memory from allocate() is the
/// device's own.
class HostOps final : public Ops {
 public:
  explicit HostOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  Buffer allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  void upload(void* device, const void* host, int64_t bytes) override { inner_->upload(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override {
    inner_->download(host, device, bytes);
  }
  int64_t allocated() const override { return inner_->allocated(); }
  std::unique_ptr<Linear> pack_linear(std::span<const MatrixData> parts) override {
    return inner_->pack_linear(parts);
  }
  std::unique_ptr<Table> pack_table(const MatrixData& table) override { return inner_->pack_table(table); }
  std::unique_ptr<Experts> pack_experts(std::span<const MatrixData> gate, std::span<const MatrixData> up,
                                        std::span<const MatrixData> down) override {
    return inner_->pack_experts(gate, up, down);
  }
  std::unique_ptr<KvCache> make_cache(int32_t layers, int32_t heads, int32_t pages) override {
    return inner_->make_cache(layers, heads, pages);
  }
  std::unique_ptr<Step> begin(const Batch& batch) override { return inner_->begin(batch); }
  void copy_pages(KvCache& cache, std::span<const PageCopy> copies) override {
    inner_->copy_pages(cache, copies);
  }
  std::vector<uint8_t> failed(Step& step) override { return inner_->failed(step); }

  void embed(Step& step, std::span<const int32_t> tokens, const Table& table, Rows x) override {
    Copy copy(*this);
    inner_->embed(step, tokens, table, copy.rows(x));
  }
  void norm(Step& step, Rows x, Vector weight, float eps, Rows h) override {
    Copy copy(*this);
    inner_->norm(step, copy.rows(x), copy.vector(weight), eps, copy.rows(h));
  }
  void add_norm(Step& step, Rows x, Rows z, Vector weight, float eps, Rows h) override {
    Copy copy(*this);
    inner_->add_norm(step, copy.rows(x), copy.rows(z), copy.vector(weight), eps, copy.rows(h));
  }
  void linear(Step& step, Rows h, const Linear& weights, Rows y) override {
    Copy copy(*this);
    inner_->linear(step, copy.rows(h), weights, copy.rows(y));
  }
  void linear_of(Step& step, Rows h, std::span<const int32_t> rows, const Linear& weights, Rows y) override {
    Copy copy(*this);
    inner_->linear_of(step, copy.rows(h), rows, weights, copy.rows(y));
  }
  void write_kv(Step& step, Rows qkv, Vector q_norm, Vector k_norm, float eps, RopeParams rope,
                KvCache& cache, int32_t layer) override {
    Copy copy(*this);
    inner_->write_kv(step, copy.rows(qkv), copy.vector(q_norm), copy.vector(k_norm), eps, rope, cache, layer);
  }
  void attention(Step& step, Rows qkv, const KvCache& cache, int32_t layer, Rows out) override {
    Copy copy(*this);
    inner_->attention(step, copy.rows(qkv), cache, layer, copy.rows(out));
  }
  void gate_up(Step& step, Rows h, const Linear& weights, Rows a) override {
    Copy copy(*this);
    inner_->gate_up(step, copy.rows(h), weights, copy.rows(a));
  }
  void route(Step& step, Rows h, const Linear& router, Vector bias, RouterParams params,
             Routes routes) override {
    Copy copy(*this);
    inner_->route(step, copy.rows(h), router, copy.vector(bias), params, copy.routes(routes));
  }
  void experts_gate_up(Step& step, Rows h, const Routes& routes, const Experts& experts, Rows a) override {
    Copy copy(*this);
    inner_->experts_gate_up(step, copy.rows(h), copy.routes(routes), experts, copy.rows(a));
  }
  void experts_down(Step& step, Rows a, const Routes& routes, const Experts& experts, Rows shared,
                    Rows z) override {
    Copy copy(*this);
    inner_->experts_down(step, copy.rows(a), copy.routes(routes), experts, copy.rows(shared), copy.rows(z));
  }
  void mtp_input(Step& step, std::span<const int32_t> next, const Table& table, Rows hidden, Vector enorm,
                 Vector hnorm, float eps, Rows out) override {
    Copy copy(*this);
    inner_->mtp_input(step, next, table, copy.rows(hidden), copy.vector(enorm), copy.vector(hnorm), eps,
                      copy.rows(out));
  }
  std::vector<RowResult> evaluate(Step& step, Rows logits, std::span<const RowOutput> outputs) override {
    Copy copy(*this);
    return inner_->evaluate(step, copy.rows(logits), outputs);
  }

 private:
  /// The device's copies of one call; what is not const goes back with it.
  class Copy {
   public:
    explicit Copy(HostOps& ops) : ops_(*ops.inner_) {}
    Copy(const Copy&) = delete;
    ~Copy() {
      for (const Back& back : back_) ops_.download(back.host, back.device, back.bytes);
    }

    Rows rows(Rows host) {
      return {static_cast<float*>(take(host.data, host.rows * host.cols * 4, true)), host.rows, host.cols};
    }
    Vector vector(Vector host) {
      return {static_cast<float*>(take(const_cast<float*>(host.data), host.size * 4, false)), host.size};
    }
    Routes routes(Routes host) {
      Routes out = host;
      const int64_t bytes = host.rows * host.chosen * 4;
      out.experts = static_cast<int32_t*>(take(host.experts, bytes, true));
      out.weights = static_cast<float*>(take(host.weights, bytes, true));
      return out;
    }

   private:
    struct Back {
      void* host;
      void* device;
      int64_t bytes;
    };
    void* take(void* host, int64_t bytes, bool goes_back) {
      if (host == nullptr || bytes == 0) return nullptr;
      buffers_.push_back(ops_.allocate(bytes));
      void* const device = buffers_.back().get();
      ops_.upload(device, host, bytes);
      if (goes_back) back_.push_back({host, device, bytes});
      return device;
    }

    Ops& ops_;
    std::vector<Buffer> buffers_;
    std::vector<Back> back_;
  };

  std::unique_ptr<Ops> inner_;
};

}  // namespace tercet::cuda
