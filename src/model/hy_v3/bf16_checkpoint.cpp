#include "model/hy_v3/bf16_checkpoint.h"

#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"
#include "base/threads.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/experts.h"
#include "model/hy_v3/model_parts.h"
#include "tensor/unpack.h"
#include "weights/generated_source.h"
#include "weights/matrix.h"

namespace tercet::hy_v3 {
namespace {

float value_at(const std::byte* values, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::bf16:
      return bf16_to_float(reinterpret_cast<const uint16_t*>(values)[i]);
    case DType::f16:
      return f16_to_float(reinterpret_cast<const uint16_t*>(values)[i]);
    default:
      TERCET_CHECK(dtype == DType::f32);
      return reinterpret_cast<const float*>(values)[i];
  }
}

/// `scratch`: k bytes.
void row_to_bf16(const MatrixData& m, int64_t row, uint8_t* scratch, uint16_t* out) {
  const std::byte* values = m.values + row * m.value_row_bytes();
  if (!m.affine()) {
    for (int64_t i = 0; i < m.k; ++i) out[i] = float_to_bf16(value_at(values, m.dtype, i));
    return;
  }
  unpack_q(values, m.bits, m.k, scratch);
  const std::byte* scales = m.scales + row * m.scale_row_bytes();
  const std::byte* biases = m.biases + row * m.scale_row_bytes();
  for (int64_t group = 0; group < m.k / m.group; ++group) {
    const float scale = value_at(scales, m.dtype, group);
    const float bias = value_at(biases, m.dtype, group);
    for (int64_t i = group * m.group; i < (group + 1) * m.group; ++i) {
      const float scaled = scale * static_cast<float>(scratch[i]);
      out[i] = float_to_bf16(scaled + bias);
    }
  }
}

struct Workers {
  explicit Workers(int threads) : pool(threads) {}
  ThreadPool pool;
  std::mutex turn;
};

/// The rows of `matrices`, one after the other.
TensorBytes rows_to_bf16(const std::vector<MatrixData>& matrices, Workers& workers) {
  const int64_t n = matrices[0].n;
  const int64_t k = matrices[0].k;
  const int64_t rows = n * static_cast<int64_t>(matrices.size());
  auto [out, bytes] = new_tensor<uint16_t>(rows * k);
  const std::lock_guard lock(workers.turn);
  workers.pool.parallel_for(rows, 64, [&, out = out](int64_t begin, int64_t end) {
    std::vector<uint8_t> scratch(static_cast<size_t>(k));
    for (int64_t row = begin; row < end; ++row) {
      row_to_bf16(matrices[static_cast<size_t>(row / n)], row % n, scratch.data(), out + row * k);
    }
  });
  return bytes;
}

class Builder {
 public:
  Builder(const Checkpoint& original, const Config& config, int threads)
      : source_(original.tensors), config_(config), workers_(std::make_shared<Workers>(threads)) {}

  Result<void> add_matrix(const MatrixPart& from, const std::string& name) {
    TERCET_TRY(MatrixData matrix,
               load_matrix(*source_, from.name, from.n, from.k, config_.quantization, workers_->pool));
    add(name + ".weight", {from.n, from.k}, {std::move(matrix)});
    return {};
  }

  Result<void> add_vector(const VectorPart& from, const std::string& name) {
    const TensorInfo* info = source_->find(from.name);
    TERCET_TRY_VOID(load_vector(*source_, from.name, from.n));
    TensorInfo renamed = *info;
    renamed.name = name;
    tensors_.push_back({std::move(renamed), [source = source_, info] { return source->read(*info); }});
    return {};
  }

  Result<void> add_experts(const ExpertNames& from, const ExpertNames& to) {
    TERCET_TRY(const ExpertMatrices experts, load_experts(*source_, config_, from, workers_->pool));
    if (to.gate_up.empty()) {
      add_stack(to.gate, experts.gate);
      add_stack(to.up, experts.up);
      add_stack(to.down, experts.down);
      return {};
    }
    std::vector<MatrixData> both;
    for (size_t e = 0; e < experts.gate.size(); ++e)
      both.insert(both.end(), {experts.gate[e], experts.up[e]});
    const int64_t count = config_.num_experts;
    add(to.gate_up[0], {count, 2 * config_.moe_intermediate_size, config_.hidden_size}, std::move(both));
    add(to.down[0], {count, config_.hidden_size, config_.moe_intermediate_size}, experts.down);
    return {};
  }

  std::shared_ptr<const TensorSource> finish() {
    return make_generated_source(std::move(tensors_), "bf16 twin of a checkpoint");
  }

 private:
  void add(const std::string& tensor, std::vector<int64_t> shape, std::vector<MatrixData> matrices) {
    GeneratedTensor made;
    made.info = {tensor, DType::bf16, std::move(shape)};
    made.make = [matrices = std::move(matrices), workers = workers_]() -> Result<TensorBytes> {
      return rows_to_bf16(matrices, *workers);
    };
    tensors_.push_back(std::move(made));
  }

  void add_stack(const std::vector<std::string>& names, const std::vector<MatrixData>& matrices) {
    const int64_t n = matrices[0].n;
    const int64_t k = matrices[0].k;
    if (names.size() == 1) return add(names[0] + ".weight", {config_.num_experts, n, k}, matrices);
    for (size_t e = 0; e < names.size(); ++e) add(names[e] + ".weight", {n, k}, {matrices[e]});
  }

  std::shared_ptr<const TensorSource> source_;
  const Config& config_;
  std::shared_ptr<Workers> workers_;
  std::vector<GeneratedTensor> tensors_;
};

std::string without_quantization(const std::string& config_json) {
  auto config = nlohmann::ordered_json::parse(config_json, nullptr, false);
  for (const char* key : {"quantization", "quantization_config"}) config.erase(key);
  return config.dump(2) + "\n";
}

}  // namespace

Result<Checkpoint> to_bf16(const Checkpoint& checkpoint, Spelling spelling, int threads) {
  TERCET_TRY(Config config, parse_config(checkpoint.config_json));
  TERCET_TRY(const ModelNames from, resolve_names(config, *checkpoint.tensors));
  Config present = config;
  present.mtp_layers = from.mtp ? 1 : 0;
  const ModelParts source = list_parts(config, from);
  const ModelParts target = list_parts(config, spell_names(present, spelling));

  Builder builder(checkpoint, config, threads);
  for (size_t i = 0; i < source.matrices.size(); ++i) {
    TERCET_TRY_VOID(builder.add_matrix(source.matrices[i], target.matrices[i].name));
  }
  for (size_t i = 0; i < source.vectors.size(); ++i) {
    TERCET_TRY_VOID(builder.add_vector(source.vectors[i], target.vectors[i].name));
  }
  for (size_t i = 0; i < source.experts.size(); ++i) {
    TERCET_TRY_VOID(builder.add_experts(source.experts[i], target.experts[i]));
  }
  return Checkpoint{without_quantization(checkpoint.config_json), builder.finish()};
}

}  // namespace tercet::hy_v3
