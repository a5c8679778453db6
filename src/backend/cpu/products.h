// Products of rows with packed weights on all threads (docs/exactness.md, rules 1 to 3).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/packing.h"
#include "backend/cpu/thread_pool.h"
#include "ops/ops.h"

namespace tercet::cpu {

/// What every operation works with.
struct Machine {
  const Kernels& kernels;
  SpinningPool& pool;

  /// body(begin, end, thread) over [0, count). An item reads `bytes` from memory or does work worth as
  /// much: pieces are large enough to be worth handing over, and enough to keep every thread busy.
  void run(int64_t count, int64_t bytes, const SpinningPool::Body& body) const;
};

/// Rows as whole numbers, in memory that is kept from step to step.
class RoundedRows {
 public:
  /// Makes room for `rows` rows that meet weights of this layout.
  void reset(int64_t rows, const TileLayout& layout);

  /// Rounds x into row r; `rest` as in Kernels::round_row.
  bool round(const Kernels& kernels, const float* x, int64_t r, float* rest);
  ProductRow row(int64_t r, float* y) const;
  int64_t bytes() const;

 private:
  TileLayout layout_;
  std::vector<uint8_t> numbers_;  // [rows, 2·k]
  std::vector<float> unit_;       // [rows, groups]
  std::vector<float> sum_;        // [rows, groups]
};

/// A thread's results of one tile: 16 a row.
struct TileScratch {
  std::vector<float> y;
  std::vector<ProductRow> rows;

  /// Room for `count` rows.
  void reset(int64_t count);
  /// Points entry i at row `row` of x, its results at y[16·i].
  void set(int64_t i, const RoundedRows& x, int64_t row) { rows[static_cast<size_t>(i)] = x.row(row, at(i)); }
  float* at(int64_t i) { return y.data() + i * kTile; }
};

/// Called for rows that are not finite or too large, by any thread, with the row's number in its list.
using FailedRow = std::function<void(int64_t)>;

/// Matrices stacked along n, over one k.
struct PackedLinear final : Linear {
  std::vector<PackedMatrix> parts;
  PackedBytes memory{nullptr, nullptr};
};

/// Copies and packs. The parts' memory lies in `memory`, in order; every thread of the pool works.
PackedBytes pack_matrices(const Machine& machine, std::span<const MatrixData> data,
                          std::vector<PackedMatrix>& packed);

class Products {
 public:
  explicit Products(const Machine& machine)
      : machine_(machine), threads_(static_cast<size_t>(machine.pool.threads())) {}

  /// y[i] = W·x[i]', x[i] being `x.cols` floats at row(i).
  void multiply(const PackedLinear& w, Rows y, const std::function<const float*(int64_t)>& row,
                const FailedRow& failed);
  /// a = SwiGLU of the product's two halves.
  void gate_up(const PackedLinear& w, Rows h, Rows a, const FailedRow& failed);
  /// logits = W·x' + W·(x − x')' (rule 10).
  void both_parts(const PackedMatrix& w, Rows h, float* logits, const FailedRow& failed);

  /// Scratch memory held.
  int64_t bytes() const;

 private:
  void round(RoundedRows& to, const PackedMatrix& w, int64_t count,
             const std::function<const float*(int64_t)>& row, const FailedRow& failed);

  const Machine& machine_;
  RoundedRows rows_, second_;
  std::vector<float> rest_;
  std::vector<TileScratch> threads_;
};

}  // namespace tercet::cpu
