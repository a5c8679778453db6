#include "model/hy_v3/model_parts.h"

namespace tercet::hy_v3 {
namespace {

void add_swiglu(ModelParts& parts, const SwiGluNames& names, int64_t inner, int64_t hidden) {
  parts.matrices.push_back({MatrixRole::inner, names.gate, inner, hidden});
  parts.matrices.push_back({MatrixRole::inner, names.up, inner, hidden});
  parts.matrices.push_back({MatrixRole::inner, names.down, hidden, inner});
}

void add_layer(ModelParts& parts, const LayerNames& names, const Config& config) {
  const int64_t hidden = config.hidden_size;
  parts.vectors.push_back({VectorRole::norm, names.input_norm, hidden});
  parts.vectors.push_back({VectorRole::norm, names.post_norm, hidden});
  parts.vectors.push_back({VectorRole::head_norm, names.q_norm, kHeadDim});
  parts.vectors.push_back({VectorRole::head_norm, names.k_norm, kHeadDim});
  parts.matrices.push_back({MatrixRole::inner, names.q, config.q_size(), hidden});
  parts.matrices.push_back({MatrixRole::inner, names.k, config.kv_size(), hidden});
  parts.matrices.push_back({MatrixRole::inner, names.v, config.kv_size(), hidden});
  parts.matrices.push_back({MatrixRole::inner, names.o, hidden, config.q_size()});
  if (names.dense) add_swiglu(parts, *names.dense, config.intermediate_size, hidden);
  if (!names.moe) return;
  parts.matrices.push_back({MatrixRole::router, names.moe->router, config.num_experts, hidden});
  if (config.expert_bias) {
    parts.vectors.push_back({VectorRole::expert_bias, names.moe->expert_bias, config.num_experts});
  }
  if (names.moe->shared) add_swiglu(parts, *names.moe->shared, config.shared_intermediate_size(), hidden);
  parts.experts.push_back(names.moe->experts);
}

}  // namespace

ModelParts list_parts(const Config& config, const ModelNames& names) {
  const int64_t hidden = config.hidden_size;
  ModelParts parts;
  parts.matrices.push_back({MatrixRole::embedding, names.embed, config.vocab_size, hidden});
  if (!config.tied_embeddings) {
    parts.matrices.push_back({MatrixRole::lm_head, names.lm_head, config.vocab_size, hidden});
  }
  parts.vectors.push_back({VectorRole::norm, names.norm, hidden});
  for (const LayerNames& layer : names.layers) add_layer(parts, layer, config);
  if (names.mtp) {
    for (const std::string& norm : {names.mtp->enorm, names.mtp->hnorm, names.mtp->final_norm}) {
      parts.vectors.push_back({VectorRole::norm, norm, hidden});
    }
    parts.matrices.push_back({MatrixRole::inner, names.mtp->eh_proj, hidden, 2 * hidden});
    add_layer(parts, names.mtp->layer, config);
  }
  return parts;
}

}  // namespace tercet::hy_v3
