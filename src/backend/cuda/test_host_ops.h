// Operations of a device on rows in plain memory, for tests that compare them with those of the host.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ops/forwarding_ops.h"

namespace tercet::cuda {

/// Every call copies what it reads to the device and back what it writes. Memory from allocate() is the
/// device's own.
class HostOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  /// What takes rows in its own memory.
  Ops& device() { return *inner_; }

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
};

}  // namespace tercet::cuda
