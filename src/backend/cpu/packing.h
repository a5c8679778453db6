// Weights in the order in which kernels read them: tiles of 16 outputs, each one sequential stream.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "backend/cpu/kernels.h"
#include "base/threads.h"
#include "tensor/matrix_data.h"

namespace tercet::cpu {

/// One matrix, its last tile filled up with zeros. A view: PackedBytes owns the memory.
struct PackedMatrix {
  TileLayout layout;
  int64_t n = 0;
  int64_t k = 0;
  const uint8_t* data = nullptr;

  int64_t tiles() const { return (n + kTile - 1) / kTile; }
  int64_t tile_bytes() const { return layout.groups * layout.group_bytes; }
  int64_t bytes() const { return tiles() * tile_bytes(); }
  const uint8_t* tile(int64_t t) const { return data + t * tile_bytes(); }
  /// Rows rounded for one product serve another with the same form and group.
  bool same_rows(const PackedMatrix& other) const {
    return layout.group == other.layout.group && (layout.bits == 0) == (other.layout.bits == 0);
  }
};

/// Memory for packed weights, on large pages where the system has them (a token reads all of it).
using PackedBytes = std::unique_ptr<uint8_t, void (*)(void*)>;
PackedBytes allocate_packed(int64_t bytes);

/// The same for containers.
template <class T>
struct LargePages {
  using value_type = T;
  T* allocate(size_t count) {
    return reinterpret_cast<T*>(allocate_packed(static_cast<int64_t>(count * sizeof(T))).release());
  }
  void deallocate(T* memory, size_t) { std::free(memory); }
  bool operator==(const LargePages&) const = default;
};

/// Sizes alone; `data` is to be set.
PackedMatrix lay_out(const MatrixData& data);

/// Writes tile t of `data` to its place at `to`.
void pack_tile(const MatrixData& data, const PackedMatrix& layout, int64_t t, uint8_t* to);

}  // namespace tercet::cpu
