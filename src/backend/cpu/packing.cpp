#include "backend/cpu/packing.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/reference/product.h"
#include "base/check.h"
#include "ops/leaves.h"
#include "tensor/unpack.h"

namespace tercet::cpu {
namespace {

constexpr int64_t kMaxGroup = 128;

ScaleType scale_type(DType dtype) {
  if (dtype == DType::bf16) return ScaleType::bf16;
  if (dtype == DType::f16) return ScaleType::f16;
  TERCET_CHECK(dtype == DType::f32);
  return ScaleType::f32;
}

/// A plane: bits [shift, shift + bits) of each q.
struct Plane {
  int shift;
  int bits;
};

/// The planes of a tile, as TileLayout has them.
std::vector<Plane> planes_of(int bits) {
  std::vector<Plane> planes;
  const auto add_part = [&](int shift, int part) {
    if (part == 3) planes.push_back({shift + 2, 1});
    if (part > 0) planes.push_back({shift, part == 3 ? 2 : part});
  };
  add_part(4, bits - 4);
  add_part(0, std::min(bits, 4));
  return planes;
}

/// One output's words of a plane, from its q.
void plane_words(const uint8_t* q, int64_t group, Plane plane, uint32_t* words) {
  const int64_t values = 32 / plane.bits;
  const uint32_t mask = (1U << plane.bits) - 1;
  for (int64_t s = 0; s < group / values; ++s) {
    words[s] = 0;
    for (int64_t v = 0; v < values; ++v) {
      const int64_t field = v / 8 * 2 + v % 2;
      words[s] |= ((uint32_t{q[s * values + v]} >> plane.shift) & mask)
                  << (8 * (v % 8 / 2) + plane.bits * field);
    }
  }
}

void pack_affine(const MatrixData& data, const PackedMatrix& m, int64_t first, int64_t count, uint8_t* to) {
  const TileLayout& w = m.layout;
  const int64_t width = dtype_size(data.dtype);
  const std::vector<Plane> planes = planes_of(w.bits);
  std::array<uint8_t, kMaxGroup> q{};
  std::array<uint32_t, kMaxGroup / 8> row;
  for (int64_t g = 0; g < w.groups; ++g, to += w.group_bytes) {
    for (int64_t o = 0; o < count; ++o) {
      const std::byte* packed =
          data.values + (first + o) * data.value_row_bytes() + g * w.group * data.bits / 8;
      if (w.bits != 4) unpack_q(packed, data.bits, w.group, q.data());
      uint8_t* at = to + 4 * o;
      for (const Plane plane : planes) {
        const int64_t words = w.group * plane.bits / 32;
        if (w.bits == 4) {  // the checkpoint's own words
          std::memcpy(row.data(), packed, static_cast<size_t>(4 * words));
        } else {
          plane_words(q.data(), w.group, plane, row.data());
        }
        for (int64_t s = 0; s < words; ++s, at += 64) std::memcpy(at, &row[static_cast<size_t>(s)], 4);
      }
    }
    uint8_t* scales = to + w.group * w.bits * 2;
    for (int64_t o = 0; o < count; ++o) {
      const int64_t from = ((first + o) * w.groups + g) * width;
      std::memcpy(scales + o * width, data.scales + from, static_cast<size_t>(width));
      std::memcpy(scales + (kTile + o) * width, data.biases + from, static_cast<size_t>(width));
    }
  }
}

void pack_floats(const MatrixData& data, const PackedMatrix& m, int64_t first, int64_t count, uint8_t* to) {
  // The rounding of weights happens once, at load, and is the reference's own.
  const reference::Matrix rounded = reference::pack(data.rows(first, count));
  const TileLayout& w = m.layout;
  for (int64_t g = 0; g < w.groups; ++g, to += w.group_bytes) {
    uint8_t* exponents = to + w.group / 2 * 64;
    for (int64_t o = 0; o < count; ++o) {
      const int16_t* values = rounded.m.data() + o * m.k + g * w.group;
      for (int64_t p = 0; p < w.group / 2; ++p) std::memcpy(to + 64 * p + 4 * o, values + 2 * p, 4);
      exponents[o] = static_cast<uint8_t>(rounded.f[static_cast<size_t>(o * w.groups + g)]);
    }
  }
}

}  // namespace

PackedBytes allocate_packed(int64_t bytes) {
  constexpr size_t kLargePage = size_t{1} << 21;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const size_t alignment = size >= kLargePage ? kLargePage : 64;
  void* data = nullptr;  // aligned_alloc() wants whole alignments
  TERCET_CHECK_EQ(posix_memalign(&data, alignment, (size + 63) / 64 * 64), 0);
  // Only whole large pages: a last one in part would hold more memory than the weights.
  if (alignment == kLargePage) madvise(data, size / kLargePage * kLargePage, MADV_HUGEPAGE);
  return PackedBytes(static_cast<uint8_t*>(data), std::free);
}

PackedMatrix lay_out(const MatrixData& data) {
  TERCET_CHECK_LE(data.group, kMaxGroup);
  TERCET_CHECK_EQ(data.group % 32, 0);
  TERCET_CHECK_EQ(data.k % data.group, 0);
  PackedMatrix m;
  m.n = data.n;
  m.k = data.k;
  m.layout.group = data.group;
  m.layout.groups = data.k / data.group;
  m.layout.groups_in_leaf = m.layout.groups / leaf_count(m.layout.groups);
  if (data.affine()) {
    m.layout.bits = data.bits;
    m.layout.scale = scale_type(data.dtype);
    m.layout.group_bytes = data.group * data.bits * 2 + 2 * kTile * dtype_size(data.dtype);
  } else {
    m.layout.group_bytes = data.group * 2 * kTile + kTile;
  }
  return m;
}

void pack_tile(const MatrixData& data, const PackedMatrix& layout, int64_t t, uint8_t* to) {
  const int64_t first = t * kTile;
  const int64_t count = std::min<int64_t>(kTile, data.n - first);
  if (count < kTile) std::memset(to, 0, static_cast<size_t>(layout.tile_bytes()));
  if (data.affine()) {
    pack_affine(data, layout, first, count, to);
  } else {
    pack_floats(data, layout, first, count, to);
  }
}

}  // namespace tercet::cpu
