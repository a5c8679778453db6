// The operations that a model is made of. A backend implements this interface on one device; the reference
// backend defines the bits, every other equals it (docs/exactness.md, whose rules are quoted here by number).
//
// All rows are float32, row-major and contiguous, on the backend's device; work is queued in call order.
// A row that meets a value which is not finite, or an exponent above 63, sets its flag in the Step and
// touches no other row; its own later values are unspecified but finite work. Shapes are checked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ops/batch.h"
#include "ops/draw.h"
#include "tensor/matrix_data.h"

namespace tercet {

/// Device memory with one owner; freed with it.
using Buffer = std::unique_ptr<void, std::function<void(void*)>>;

/// A view of float32 rows [rows, cols].
struct Rows {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;

  Rows first(int64_t count) const { return {data, count, cols}; }
};

/// A view of a float32 vector on the device (norm weights, expert biases).
struct Vector {
  const float* data = nullptr;
  int64_t size = 0;
};

/// Weights of one product, packed for the backend: y[n] = Σ w[n, k]·x[k].
class Linear {
 public:
  virtual ~Linear() = default;
  int64_t n = 0;
  int64_t k = 0;
  int64_t bytes = 0;
};

/// An embedding table [vocabulary, hidden].
class Table {
 public:
  virtual ~Table() = default;
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t bytes = 0;
};

/// The routed experts of a layer: gate and up [inter, hidden] each, down [out, down_k].
class Experts {
 public:
  virtual ~Experts() = default;
  int64_t count = 0;
  int64_t hidden = 0;
  int64_t inter = 0;
  int64_t down_k = 0;
  int64_t out = 0;
  int64_t bytes = 0;
};

/// The KV cache of one rank: `pages` pages of 64 positions for each layer and KV head; keys and values as
/// 11-bit numbers with an exponent a row (rule 8): 2·(128·2 + 1) bytes a position, head and layer.
class KvCache {
 public:
  virtual ~KvCache() = default;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t pages = 0;
  int64_t bytes = 0;
};

constexpr int64_t kHeadSize = 128;
constexpr int64_t kv_cache_bytes(int64_t layers, int64_t heads, int64_t pages) {
  return layers * heads * pages * kPageTokens * 2 * (kHeadSize * 2 + 1);
}

/// A step's batch on the device, with a failure flag a row.
class Step {
 public:
  virtual ~Step() = default;
  Batch batch;
};

struct RouterParams {
  int32_t chosen = 0;     // k
  float scaling = 1.0F;   // router_scaling_factor
  bool normalise = true;  // route_norm
};

/// The chosen experts of each row, in ascending index, and their weights.
struct Routes {
  int32_t* experts = nullptr;  // [rows, chosen]
  float* weights = nullptr;    // [rows, chosen]
  int64_t rows = 0;
  int64_t chosen = 0;
};

struct RopeParams {
  double theta = 0.0;
};

/// Work of a device.
struct Lap {
  double seconds = 0;
  int64_t kernels = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Memory. `allocated` counts every byte this backend holds: buffers, packed weights, caches.
  virtual Buffer allocate(int64_t bytes) = 0;
  virtual void upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* device, int64_t bytes) = 0;
  virtual int64_t allocated() const = 0;
  /// Whether the device's memory is this process's own.
  virtual bool on_host() const { return true; }

  /// Returns when all that was queued is done, loading too.
  virtual void wait() {}
  /// Sets a mark behind what was queued. False where there is none, since calls return when their work is
  /// done.
  virtual bool mark() { return false; }
  /// What lies between the marks that were set since the last call, in their order; waits for them.
  virtual std::vector<Lap> laps() { return {}; }

  // Loading. Data is copied, perhaps after the call what MatrixData::owner keeps; the sources may go. Parts
  // of a product are stacked along n and may differ in bits and group, not in k.
  virtual std::unique_ptr<Linear> pack_linear(std::span<const MatrixData> parts) = 0;
  virtual std::unique_ptr<Table> pack_table(const MatrixData& table) = 0;
  virtual std::unique_ptr<Experts> pack_experts(std::span<const MatrixData> gate,
                                                std::span<const MatrixData> up,
                                                std::span<const MatrixData> down) = 0;
  virtual std::unique_ptr<KvCache> make_cache(int32_t layers, int32_t heads, int32_t pages) = 0;

  // A step.
  virtual std::unique_ptr<Step> begin(const Batch& batch) = 0;
  virtual void copy_pages(KvCache& cache, std::span<const PageCopy> copies) = 0;
  /// Flags of the step's rows, after all queued work; 1: failed.
  virtual std::vector<uint8_t> failed(Step& step) = 0;

  /// x[r] = table[tokens[r]], never rounded (rule 2).
  virtual void embed(Step& step, std::span<const int32_t> tokens, const Table& table, Rows x) = 0;
  /// h = RMSNorm(x)·weight (rule 6).
  virtual void norm(Step& step, Rows x, Vector weight, float eps, Rows h) = 0;
  /// x = fl(x + z), then h = RMSNorm(x)·weight; without a weight only the sum.
  virtual void add_norm(Step& step, Rows x, Rows z, Vector weight, float eps, Rows h) = 0;
  /// y = W·h' (rules 1 to 3).
  virtual void linear(Step& step, Rows h, const Linear& weights, Rows y) = 0;
  /// y[i] = W·h'[rows[i]], for the rows whose logits are wanted.
  virtual void linear_of(Step& step, Rows h, std::span<const int32_t> rows, const Linear& weights,
                         Rows y) = 0;
  /// Head norms of q and k, RoPE, rounding; keys and values go to the cache, into pages that no other
  /// sequence of the step and no other of its own places has; q stays in place, rounded, for attention(),
  /// after which qkv is anybody's (rules 6 to 8). qkv: [rows, (heads + 2·kv_heads)·128], q first, then k,
  /// then v.
  virtual void write_kv(Step& step, Rows qkv, Vector q_norm, Vector k_norm, float eps, RopeParams rope,
                        KvCache& cache, int32_t layer) = 0;
  /// Causal attention of the rows over the cache (rule 8). out: [rows, heads·128].
  virtual void attention(Step& step, Rows qkv, const KvCache& cache, int32_t layer, Rows out) = 0;
  /// a = SwiGLU(gate·h', up·h') (rule 9); weights: gate stacked on up, n = 2·a.cols.
  virtual void gate_up(Step& step, Rows h, const Linear& weights, Rows a) = 0;
  /// Logits with both parts of the rows, sigmoid, bias, top-k, weights (rule 10).
  virtual void route(Step& step, Rows h, const Linear& router, Vector bias, RouterParams params,
                     Routes routes) = 0;
  /// a[r·chosen + j] = SwiGLU of the row's j-th expert. a: [rows·chosen, inter].
  virtual void experts_gate_up(Step& step, Rows h, const Routes& routes, const Experts& experts, Rows a) = 0;
  /// z = Σ weight·down(a) over the chosen in ascending index, then + shared (rule 11); shared.data may be
  /// null.
  virtual void experts_down(Step& step, Rows a, const Routes& routes, const Experts& experts, Rows shared,
                            Rows z) = 0;
  /// The MTP layer's input: [RMSNorm(table[next[r]])·enorm ; RMSNorm(hidden)·hnorm]. out: [rows, 2·hidden].
  virtual void mtp_input(Step& step, std::span<const int32_t> next, const Table& table, Rows hidden,
                         Vector enorm, Vector hnorm, float eps, Rows out) = 0;
  /// Log-probabilities and draws (rule 12). logits: [outputs, vocabulary], row i belonging to outputs[i].
  virtual std::vector<RowResult> evaluate(Step& step, Rows logits, std::span<const RowOutput> outputs) = 0;
};

}  // namespace tercet
