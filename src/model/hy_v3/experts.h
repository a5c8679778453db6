// The routed experts' matrices, however the checkpoint stores them.
#pragma once

#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/tensor_names.h"
#include "tensor/matrix_data.h"
#include "weights/matrix.h"
#include "weights/tensor_source.h"

namespace tercet::hy_v3 {

/// One matrix for each expert.
struct ExpertMatrices {
  std::vector<MatrixData> gate, up;  // [moe_intermediate_size, hidden_size]
  std::vector<MatrixData> down;      // [hidden_size, moe_intermediate_size]
};

/// Views of the source's bytes; cost and errors as load_matrix().
Result<ExpertMatrices> load_experts(const TensorSource& source, const Config& config,
                                    const ExpertNames& names, ThreadPool& pool);

}  // namespace tercet::hy_v3
