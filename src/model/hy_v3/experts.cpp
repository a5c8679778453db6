#include "model/hy_v3/experts.h"

namespace tercet::hy_v3 {

Result<ExpertMatrices> load_experts(const TensorSource& source, const Config& config,
                                    const ExpertNames& names, ThreadPool& pool) {
  const int64_t count = config.num_experts;
  const int64_t inner = config.moe_intermediate_size;
  const int64_t hidden = config.hidden_size;
  const Quantization& quantization = config.quantization;
  ExpertMatrices experts;
  TERCET_TRY(experts.down, load_matrices(source, names.down, count, hidden, inner, quantization, pool));
  if (names.gate_up.empty()) {
    TERCET_TRY(experts.gate, load_matrices(source, names.gate, count, inner, hidden, quantization, pool));
    TERCET_TRY(experts.up, load_matrices(source, names.up, count, inner, hidden, quantization, pool));
    return experts;
  }
  TERCET_TRY(const std::vector<MatrixData> fused,
             load_matrices(source, names.gate_up, count, 2 * inner, hidden, quantization, pool));
  for (const MatrixData& both : fused) {
    experts.gate.push_back(both.rows(0, inner));
    experts.up.push_back(both.rows(inner, inner));
  }
  return experts;
}

}  // namespace tercet::hy_v3
