#include "backend/cpu/products.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tercet::cpu {
namespace {

void copy_outputs(const float* y, int64_t outputs, float* to) {
  if (outputs == kTile) {  // a size that the compiler knows takes no call
    std::memcpy(to, y, kTile * sizeof(float));
  } else {
    std::memcpy(to, y, static_cast<size_t>(outputs) * sizeof(float));
  }
}

}  // namespace

void Machine::run(int64_t count, int64_t bytes, const SpinningPool::Body& body) const {
  // A thread reads this in about two microseconds, twice what a hand-over costs.
  constexpr int64_t kPieceBytes = 24 << 10;
  constexpr int64_t kPiecesAThread = 4;
  const int64_t threads = pool.threads();
  const int64_t least = (kPieceBytes + bytes - 1) / std::max<int64_t>(bytes, 1);
  int64_t grain = std::max({int64_t{1}, least, count / (kPiecesAThread * threads)});
  if (count > grain) {  // as many for each thread
    const int64_t rounds = std::max<int64_t>(1, count / (grain * threads));
    grain = std::max((grain + 1) / 2, (count + rounds * threads - 1) / (rounds * threads));
  }
  pool.parallel_for(count, grain, body);
}

void RoundedRows::reset(int64_t rows, const TileLayout& layout) {
  layout_ = layout;
  const auto grow = [](auto& memory, int64_t size) {
    if (memory.size() < static_cast<size_t>(size)) memory.resize(static_cast<size_t>(size));
  };
  grow(numbers_, rows * layout.groups * layout.group * 2);
  grow(unit_, rows * layout.groups);
  grow(sum_, rows * layout.groups);
}

bool RoundedRows::round(const Kernels& kernels, const float* x, int64_t r, float* rest) {
  uint8_t* numbers = numbers_.data() + r * layout_.groups * layout_.group * 2;
  float* unit = unit_.data() + r * layout_.groups;
  float* sum = sum_.data() + r * layout_.groups;
  return kernels.round_row(x, layout_, numbers, unit, sum, rest);
}

ProductRow RoundedRows::row(int64_t r, float* y) const {
  return {numbers_.data() + r * layout_.groups * layout_.group * 2, unit_.data() + r * layout_.groups,
          sum_.data() + r * layout_.groups, y};
}

int64_t RoundedRows::bytes() const {
  return static_cast<int64_t>(numbers_.size() + (unit_.size() + sum_.size()) * sizeof(float));
}

PackedBytes pack_matrices(const Machine& machine, std::span<const MatrixData> data,
                          std::vector<PackedMatrix>& packed) {
  int64_t bytes = 0;
  std::vector<int64_t> first_tile;
  int64_t tiles = 0;
  for (const MatrixData& matrix : data) {
    packed.push_back(lay_out(matrix));
    first_tile.push_back(tiles);
    tiles += packed.back().tiles();
    bytes += packed.back().bytes();
  }
  PackedBytes memory = allocate_packed(bytes);
  uint8_t* to = memory.get();
  for (PackedMatrix& matrix : packed) {
    matrix.data = to;
    to += matrix.bytes();
  }
  machine.pool.parallel_for(tiles, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const auto after = std::upper_bound(first_tile.begin(), first_tile.end(), tile);
      const auto m = static_cast<size_t>(after - first_tile.begin()) - 1;
      const int64_t t = tile - first_tile[m];
      pack_tile(data[m], packed[m], t, memory.get() + (packed[m].tile(t) - memory.get()));
    }
  });
  return memory;
}

void Products::round(RoundedRows& to, const PackedMatrix& w, int64_t count,
                     const std::function<const float*(int64_t)>& row, const FailedRow& failed) {
  to.reset(count, w.layout);
  machine_.run(count, 8 * w.k, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      if (!to.round(machine_.kernels, row(i), i, nullptr)) failed(i);
    }
  });
}

void Products::multiply(const PackedLinear& w, Rows y, const std::function<const float*(int64_t)>& row,
                        const FailedRow& failed) {
  TERCET_CHECK_EQ(y.cols, w.n);
  if (y.rows == 0) return;
  int64_t column = 0;
  for (std::span<const PackedMatrix> parts = w.parts; !parts.empty();) {
    const PackedMatrix& like = parts.front();
    size_t count = 1;
    while (count < parts.size() && parts[count].same_rows(like)) ++count;
    round(rows_, like, y.rows, row, failed);
    multiply_parts(parts.first(count), column, y);
    for (const PackedMatrix& part : parts.first(count)) column += part.n;
    parts = parts.subspan(count);
  }
}

/// The columns of y from `first` on, from rows_. One loop over all tiles of the parts.
void Products::multiply_parts(std::span<const PackedMatrix> parts, int64_t first, Rows y) const {
  int64_t tiles = 0;
  int64_t bytes = 0;
  for (const PackedMatrix& part : parts) {
    tiles += part.tiles();
    bytes += part.bytes();
  }
  machine_.run(tiles, bytes / tiles * y.rows, [&](int64_t begin, int64_t end, int) {
    Rows to = {y.data + first, y.rows, y.cols};
    for (const PackedMatrix& part : parts) {
      if (begin < std::min(end, part.tiles())) multiply_tiles(part, begin, std::min(end, part.tiles()), to);
      begin = std::max<int64_t>(0, begin - part.tiles());
      end -= part.tiles();
      to.data += part.n;
    }
  });
}

/// Tiles [begin, end) of one part, whose outputs go to the first of to's columns.
void Products::multiply_tiles(const PackedMatrix& w, int64_t begin, int64_t end, Rows to) const {
  BlockOfRows block;
  for_blocks(begin, end, w.tile_bytes(), to.rows, [&](int64_t t, int64_t last, int64_t r, int64_t count) {
    for (int64_t i = 0; i < count; ++i) block.set(i, rows_, r + i);
    for (; t < last; ++t) {
      machine_.kernels.product(w.layout, w.tile(t), block.rows, count);
      const int64_t outputs = std::min<int64_t>(kTile, w.n - t * kTile);
      for (int64_t i = 0; i < count; ++i)
        copy_outputs(block.y[i], outputs, to.data + (r + i) * to.cols + t * kTile);
    }
  });
}

void Products::gate_up(const PackedLinear& w, Rows h, Rows a, const FailedRow& failed) {
  TERCET_CHECK_EQ(w.n, 2 * a.cols);
  const auto row = [&](int64_t r) { return h.data + r * h.cols; };
  const bool paired = w.parts.size() == 2 && w.parts[0].n == w.parts[1].n;
  if (!paired) {  // halves that are no parts of their own: through memory
    std::vector<float> both(static_cast<size_t>(a.rows * w.n));
    multiply(w, {both.data(), a.rows, w.n}, row, failed);
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* gate = both.data() + r * w.n;
      machine_.kernels.swiglu(gate, gate + a.cols, a.cols, a.data + r * a.cols);
    }
    return;
  }
  const PackedMatrix& gate = w.parts[0];
  const PackedMatrix& up = w.parts[1];
  const bool same = gate.same_rows(up);
  round(rows_, gate, a.rows, row, failed);
  if (!same) round(second_, up, a.rows, row, failed);
  machine_.run(gate.tiles(), 2 * gate.tile_bytes() * a.rows, [&](int64_t begin, int64_t end, int) {
    BlockOfRows gates, ups;
    for_blocks(
        begin, end, 2 * gate.tile_bytes(), a.rows, [&](int64_t t, int64_t last, int64_t r, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            gates.set(i, rows_, r + i);
            ups.set(i, same ? rows_ : second_, r + i);
          }
          for (; t < last; ++t) {
            machine_.kernels.product(gate.layout, gate.tile(t), gates.rows, count);
            machine_.kernels.product(up.layout, up.tile(t), ups.rows, count);
            const int64_t outputs = std::min<int64_t>(kTile, gate.n - t * kTile);
            for (int64_t i = 0; i < count; ++i) {
              machine_.kernels.swiglu(gates.y[i], ups.y[i], outputs, a.data + (r + i) * a.cols + t * kTile);
            }
          }
        });
  });
}

void Products::both_parts(const PackedMatrix& w, Rows h, float* logits, const FailedRow& failed) {
  rows_.reset(h.rows, w.layout);
  second_.reset(h.rows, w.layout);
  if (rest_.size() < static_cast<size_t>(h.rows * h.cols)) rest_.resize(static_cast<size_t>(h.rows * h.cols));
  machine_.run(h.rows, 16 * w.k, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* rest = rest_.data() + r * h.cols;
      const bool whole = rows_.round(machine_.kernels, h.data + r * h.cols, r, rest);
      const bool small = second_.round(machine_.kernels, rest, r, nullptr);  // zeros where `whole` failed
      if (!whole || !small) failed(r);
    }
  });
  machine_.run(w.tiles(), 2 * w.tile_bytes() * h.rows, [&](int64_t begin, int64_t end, int) {
    BlockOfRows whole, rest;
    for_blocks(begin, end, w.tile_bytes(), h.rows, [&](int64_t t, int64_t last, int64_t r, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        whole.set(i, rows_, r + i);
        rest.set(i, second_, r + i);
      }
      for (; t < last; ++t) {
        machine_.kernels.product(w.layout, w.tile(t), whole.rows, count);
        machine_.kernels.product(w.layout, w.tile(t), rest.rows, count);
        const int64_t outputs = std::min<int64_t>(kTile, w.n - t * kTile);
        for (int64_t i = 0; i < count; ++i) {
          machine_.kernels.add(whole.y[i], rest.y[i], outputs);
          float* to = logits + (r + i) * w.n + t * kTile;
          copy_outputs(whole.y[i], outputs, to);
        }
      }
    });
  });
}

int64_t Products::bytes() const {
  return rows_.bytes() + second_.bytes() + static_cast<int64_t>(rest_.size() * sizeof(float));
}

}  // namespace tercet::cpu
