// Which tensors of a checkpoint are the parts of the model, in whichever spelling it uses: Hugging Face's
// files, transformers' modules in memory, or MLX.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/hy_v3/config.h"
#include "weights/tensor_source.h"

namespace tercet::hy_v3 {

// Matrices are given by base names for load_matrix(); norms and biases by tensor names for load_vector().

/// down(silu(gate(x)) · up(x)): gate and up [inner, hidden], down [hidden, inner].
struct SwiGluNames {
  std::string gate, up, down;
};

/// The routed experts: for load_matrices(), so one name for each expert, or one for the stack of all.
struct ExpertNames {
  std::vector<std::string> gate, up, down;
  std::vector<std::string> gate_up;  // instead of gate and up: [2·inner, hidden] an expert, gate's rows first
};

struct MoeNames {
  std::string router;       // [experts, hidden]
  std::string expert_bias;  // [experts]; empty where the config has none
  ExpertNames experts;
  std::optional<SwiGluNames> shared;
};

struct LayerNames {
  std::string input_norm, post_norm;  // [hidden]
  std::string q, k, v, o;
  std::string q_norm, k_norm;  // [head_dim]
  // One of the two:
  std::optional<SwiGluNames> dense;
  std::optional<MoeNames> moe;
};

struct MtpNames {
  std::string enorm, hnorm, final_norm;  // [hidden]
  std::string eh_proj;                   // [hidden, 2·hidden], the embedding's half first
  LayerNames layer;                      // sparse
};

struct ModelNames {
  std::string embed;    // [vocabulary, hidden]
  std::string norm;     // [hidden]
  std::string lm_head;  // [vocabulary, hidden]; empty where tied
  std::vector<LayerNames> layers;
  std::optional<MtpNames> mtp;      // absent where the checkpoint has none, whatever the config says
  std::vector<std::string> unused;  // tensors that are no part of the model; also logged
};

/// How a checkpoint names the parts and stores the experts: Hugging Face's files (apart, the MTP layer as one
/// more layer), transformers in memory (gate and up fused, stacked), MLX (stacked, the MTP layer as `mtp`).
enum class Spelling { hugging_face, transformers, mlx };

/// The names as a spelling has them, the MTP layer with them where the config promises one. For writers.
ModelNames spell_names(const Config& config, Spelling spelling);

/// Finds every part, each in any spelling; one error lists those that are missing. Reads names only: shapes
/// are checked on loading.
Result<ModelNames> resolve_names(const Config& config, const TensorSource& source);

}  // namespace tercet::hy_v3
