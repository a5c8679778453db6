// Products of rows with packed weights on all threads (docs/exactness.md, rules 1 to 3).
#pragma once

#include <algorithm>
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

/// Rows that meet a tile together: their numbers stay in the nearest cache while a thread goes through tiles.
inline constexpr int64_t kRowsInBlock = 8;

/// A thread's block of rows and what a tile makes of them.
struct BlockOfRows {
  alignas(64) float y[kRowsInBlock][kTile];
  ProductRow rows[kRowsInBlock];

  void set(int64_t i, const RoundedRows& x, int64_t row) { rows[i] = x.row(row, y[i]); }
};

/// A thread's order of work on tiles [begin, end) and `rows` rows: some tiles that stay in the second cache,
/// for them every block of rows. f(first tile, last tile, first row, rows in the block).
template <class Function>
void for_blocks(int64_t begin, int64_t end, int64_t tile_bytes, int64_t rows, Function f) {
  constexpr int64_t kNearBytes = 256 << 10;
  const int64_t step = rows <= kRowsInBlock ? end - begin : std::max<int64_t>(1, kNearBytes / tile_bytes);
  for (int64_t first = begin; first < end; first += step) {
    for (int64_t row = 0; row < rows; row += kRowsInBlock) {
      f(first, std::min(first + step, end), row, std::min(kRowsInBlock, rows - row));
    }
  }
}

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
  explicit Products(const Machine& machine) : machine_(machine) {}

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
  void multiply_parts(std::span<const PackedMatrix> parts, int64_t first, Rows y) const;
  void multiply_tiles(const PackedMatrix& w, int64_t begin, int64_t end, Rows to) const;

  const Machine& machine_;
  RoundedRows rows_, second_;
  std::vector<float> rest_;
};

}  // namespace tercet::cpu
