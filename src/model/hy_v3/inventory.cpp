#include "model/hy_v3/inventory.h"

#include <algorithm>

#include "model/hy_v3/activations.h"
#include "ops/ops.h"

namespace tercet::hy_v3 {
namespace {

class Inventory {
 public:
  explicit Inventory(const TensorSource& source) : source_(source) {}

  void set_mtp(bool mtp) { mtp_ = mtp; }

  /// Matrices of k inputs, whatever stacks they lie in. `raw`: held as they are in the file (tables).
  Result<void> matrices(const std::string& part, const std::vector<std::string>& names, int64_t k,
                        bool raw = false) {
    for (const std::string& name : names) {
      const TensorInfo* weight = source_.find(name + ".weight");
      if (weight == nullptr) weight = source_.find(name);
      if (weight == nullptr) return fail("{}: no such tensor", name);
      const TensorInfo* scales = source_.find(name + ".scales");
      const TensorInfo* biases = source_.find(name + ".biases");
      InventoryLine line;
      line.part = part;
      line.file_bytes = weight->bytes();
      if (scales == nullptr || biases == nullptr) {
        line.form = dtype_name(weight->dtype);
        line.parameters = weight->elements();
        line.held_bytes = raw ? line.file_bytes : line.parameters * 2 + line.parameters / 64;
      } else {
        const int64_t bits = weight->shape.back() * 32 / k;
        if (bits < 1 || scales->shape.back() < 1)
          return fail("{}: {} inputs expected, shape {}", name, k, weight->shape.back());
        line.form = fmt::format("{}-bit, groups of {}", bits, k / scales->shape.back());
        line.parameters = weight->bytes() * 8 / bits;
        line.file_bytes += scales->bytes() + biases->bytes();
        line.held_bytes = line.file_bytes;
      }
      add(line);
    }
    return {};
  }

  Result<void> vectors(const std::string& part, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (name.empty()) continue;
      const TensorInfo* tensor = source_.find(name);
      if (tensor == nullptr) return fail("{}: no such tensor", name);
      add({.part = part,
           .form = std::string(dtype_name(tensor->dtype)),
           .parameters = tensor->elements(),
           .file_bytes = tensor->bytes(),
           .held_bytes = tensor->elements() * 4});
    }
    return {};
  }

  Result<void> swiglu(const std::string& part, const SwiGluNames& names, int64_t hidden, int64_t inter) {
    TERCET_TRY_VOID(matrices(part, {names.gate, names.up}, hidden));
    return matrices(part, {names.down}, inter);
  }

  Result<void> layer(const Config& config, const LayerNames& names) {
    const int64_t hidden = config.hidden_size;
    TERCET_TRY_VOID(
        vectors("norms, biases", {names.input_norm, names.post_norm, names.q_norm, names.k_norm}));
    TERCET_TRY_VOID(matrices("attention", {names.q, names.k, names.v}, hidden));
    TERCET_TRY_VOID(matrices("attention", {names.o}, config.q_size()));
    if (names.dense) return swiglu("dense layers", *names.dense, hidden, config.intermediate_size);
    const MoeNames& moe = *names.moe;
    TERCET_TRY_VOID(vectors("norms, biases", {moe.expert_bias}));
    TERCET_TRY_VOID(matrices("router", {moe.router}, hidden));
    for (const auto* list : {&moe.experts.gate, &moe.experts.up, &moe.experts.gate_up}) {
      TERCET_TRY_VOID(matrices("routed experts", *list, hidden));
    }
    TERCET_TRY_VOID(matrices("routed experts", moe.experts.down, config.moe_intermediate_size));
    if (!moe.shared) return {};
    return swiglu("shared experts", *moe.shared, hidden, config.shared_intermediate_size());
  }

  std::vector<InventoryLine> take() { return std::move(lines_); }

 private:
  void add(InventoryLine line) {
    line.mtp = mtp_;
    if (mtp_) line.part = "MTP layer";
    const auto same = std::find_if(lines_.begin(), lines_.end(), [&](const InventoryLine& other) {
      return other.part == line.part && other.form == line.form;
    });
    if (same == lines_.end()) {
      lines_.push_back(std::move(line));
      return;
    }
    same->parameters += line.parameters;
    same->file_bytes += line.file_bytes;
    same->held_bytes += line.held_bytes;
  }

  const TensorSource& source_;
  std::vector<InventoryLine> lines_;
  bool mtp_ = false;
};

}  // namespace

Result<std::vector<InventoryLine>> take_inventory(const Config& config, const ModelNames& names,
                                                  const TensorSource& source, const LayerRange& layers) {
  Inventory out(source);
  const bool first = layers.begin == 0, last = layers.end == config.num_layers;
  if (first) TERCET_TRY_VOID(out.matrices("embedding", {names.embed}, config.hidden_size, true));
  for (int64_t i = layers.begin; i < layers.end; ++i) {
    TERCET_TRY_VOID(out.layer(config, names.layers[static_cast<size_t>(i)]));
  }
  if (last) {
    TERCET_TRY_VOID(out.vectors("norms, biases", {names.norm}));
    TERCET_TRY_VOID(out.matrices(config.tied_embeddings ? "lm_head (the embedding)" : "lm_head",
                                 {config.tied_embeddings ? names.embed : names.lm_head}, config.hidden_size));
  }
  if (last && names.mtp) {
    out.set_mtp(true);
    TERCET_TRY_VOID(out.vectors("", {names.mtp->enorm, names.mtp->hnorm, names.mtp->final_norm}));
    TERCET_TRY_VOID(out.matrices("", {names.mtp->eh_proj}, 2 * config.hidden_size));
    TERCET_TRY_VOID(out.layer(config, names.mtp->layer));
  }
  std::vector<InventoryLine> lines = out.take();
  if (config.tied_embeddings && first) {
    for (InventoryLine& line : lines) {
      if (line.part.starts_with("lm_head"))
        line.parameters = line.file_bytes = 0;  // counted as the embedding
    }
  }
  return lines;
}

MemoryPlan plan_memory(const Config& config, const std::vector<InventoryLine>& inventory,
                       const LayerRange& layers, int64_t context, int64_t max_rows) {
  MemoryPlan plan;
  for (const InventoryLine& line : inventory) plan.weights += line.mtp ? 0 : line.held_bytes;
  // Without a bias in the checkpoint, zeros are held in its place.
  if (!config.expert_bias) {
    plan.weights += config.num_experts * 4 *
                    std::count(config.layers.begin() + layers.begin, config.layers.begin() + layers.end,
                               LayerKind::sparse);
  }
  const int64_t pages = (context + kPageTokens - 1) / kPageTokens;
  plan.cache_per_token = kv_cache_bytes(layers.size(), config.num_kv_heads, 1) / kPageTokens;
  plan.cache = kv_cache_bytes(layers.size(), config.num_kv_heads, pages);
  plan.scratch = activation_bytes(config, {}, max_rows, false);
  return plan;
}

}  // namespace tercet::hy_v3
