// All parts of the model as lists, for what treats them alike: writers and generators of checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/hy_v3/config.h"
#include "model/hy_v3/tensor_names.h"

namespace tercet::hy_v3 {

enum class MatrixRole : uint8_t { embedding, lm_head, router, inner };
enum class VectorRole : uint8_t { norm, head_norm, expert_bias };

struct MatrixPart {
  MatrixRole role;
  std::string name;
  int64_t n, k;
};

struct VectorPart {
  VectorRole role;
  std::string name;
  int64_t n;
};

struct ModelParts {
  std::vector<MatrixPart> matrices;  // without the routed experts'
  std::vector<VectorPart> vectors;
  std::vector<ExpertNames> experts;  // of each sparse layer
};

/// The same order for every spelling of the names, so that two lists of one model can be walked together.
ModelParts list_parts(const Config& config, const ModelNames& names);

}  // namespace tercet::hy_v3
