// The routed experts: each touched expert's weights are read once, whatever the rows (docs/exactness.md,
// rules 9 to 11).
#pragma once

#include "backend/cpu/products.h"

namespace tercet::cpu {

struct PackedExperts final : Experts {
  std::vector<PackedMatrix> gate, up, down;  // [count]
  PackedBytes gate_memory{nullptr, nullptr};
  PackedBytes up_memory{nullptr, nullptr};
  PackedBytes down_memory{nullptr, nullptr};
};

/// From a row's logits to its `chosen` experts in ascending index, with their weights. `score` and `biased`
/// are scratch of logits.size().
void choose_experts(const Kernels& kernels, std::span<const float> logits, std::span<const float> bias,
                    const RouterParams& params, std::span<float> score, std::span<float> biased,
                    std::span<int32_t> experts, std::span<float> weights);

class ExpertProducts {
 public:
  explicit ExpertProducts(const Machine& machine) : machine_(machine) {}

  /// a[r·chosen + j] = SwiGLU of row r's j-th expert. `failed` gets rows of h.
  void gate_up(const PackedExperts& experts, Rows h, const Routes& routes, Rows a, const FailedRow& failed);
  /// z = Σ weight·down(a), then + shared where it is given. `failed` gets rows of z.
  void down(const PackedExperts& experts, Rows a, const Routes& routes, Rows shared, Rows z,
            const FailedRow& failed);

  /// Scratch memory held.
  int64_t bytes() const;

 private:
  /// Experts that rows chose, each with its pairs (row·chosen + j).
  struct Touched {
    int32_t expert;
    std::span<const int32_t> pairs;
  };

  /// The rows for matrices of one form and group. Stacked experts share one.
  struct Form {
    const PackedMatrix* like = nullptr;
    RoundedRows rows;
    std::vector<uint8_t> wanted;  // [rows]
  };

  void group(const Routes& routes, int64_t count);
  void round(std::initializer_list<const std::vector<PackedMatrix>*> kinds, int64_t rows,
             const std::function<const float*(int64_t)>& row, int64_t pairs_in_row, const FailedRow& failed);
  Form& form_like(const PackedMatrix& matrix, int64_t rows);
  const RoundedRows& rows_for(const PackedMatrix& matrix) const;
  void gate_up_tiles(const PackedMatrix& gate, const PackedMatrix& up, int64_t begin, int64_t end,
                     std::span<const int32_t> pairs, int64_t chosen, Rows a) const;
  void add_down_tiles(const PackedMatrix& w, int64_t begin, int64_t end, std::span<const int32_t> pairs,
                      const Routes& routes, Rows z) const;

  const Machine& machine_;
  std::vector<int32_t> pairs_;  // sorted by expert
  std::vector<Touched> touched_;
  std::vector<std::unique_ptr<Form>> forms_;
  size_t forms_used_ = 0;
};

}  // namespace tercet::cpu
