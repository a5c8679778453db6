// Operations of another backend, with something done around them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace tercet {

/// Hands on memory, loading and the frame of a step; what computes is left to the class that derives.
class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  Buffer allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  void upload(void* device, const void* host, int64_t bytes) override { inner_->upload(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override {
    inner_->download(host, device, bytes);
  }
  int64_t allocated() const override { return inner_->allocated(); }
  bool on_host() const override { return inner_->on_host(); }
  void wait() override { inner_->wait(); }
  bool mark() override { return inner_->mark(); }
  std::vector<Lap> laps() override { return inner_->laps(); }

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

 protected:
  const std::unique_ptr<Ops> inner_;
};

}  // namespace tercet
