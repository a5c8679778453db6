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

/// The 4-bit numbers of a group as words of 8, for one plane: the checkpoint's own bytes where it has 4 bits.
void plane_words(const MatrixData& data, int64_t row, int64_t g, int plane, int planes, uint32_t* words) {
  const int64_t group = data.group;
  const std::byte* packed = data.values + row * data.value_row_bytes() + g * group * data.bits / 8;
  if (data.bits == 4) {
    std::memcpy(words, packed, static_cast<size_t>(group / 2));
    return;
  }
  std::array<uint8_t, kMaxGroup> q{};
  unpack_q(packed, data.bits, group, q.data());
  const bool high = planes == 2 && plane == 0;
  for (int64_t s = 0; s < group / 8; ++s) {
    words[s] = 0;
    for (int64_t i = 0; i < 8; ++i) {
      const uint32_t value = q[static_cast<size_t>(8 * s + i)];
      words[s] |= (high ? value >> 4 : value & 15U) << (4 * i);
    }
  }
}

void pack_affine(const MatrixData& data, const PackedMatrix& m, int64_t first, int64_t count, uint8_t* to) {
  const TileLayout& w = m.layout;
  const int64_t words = w.group / 8;
  const int64_t width = dtype_size(data.dtype);
  std::array<uint32_t, kMaxGroup / 8> row;
  for (int64_t g = 0; g < w.groups; ++g, to += w.group_bytes) {
    uint8_t* at = to;
    for (int plane = 0; plane < w.planes; ++plane, at += words * 64) {
      for (int64_t o = 0; o < count; ++o) {
        plane_words(data, first + o, g, plane, w.planes, row.data());
        for (int64_t s = 0; s < words; ++s) std::memcpy(at + 64 * s + 4 * o, &row[static_cast<size_t>(s)], 4);
      }
    }
    for (int64_t o = 0; o < count; ++o) {
      const int64_t from = ((first + o) * w.groups + g) * width;
      std::memcpy(at + o * width, data.scales + from, static_cast<size_t>(width));
      std::memcpy(at + (kTile + o) * width, data.biases + from, static_cast<size_t>(width));
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
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(alignment, (size + 63) / 64 * 64));
  TERCET_CHECK(data != nullptr);
  // Only whole large pages: a last one in part would hold more memory than the weights.
  if (alignment == kLargePage) madvise(data, size / kLargePage * kLargePage, MADV_HUGEPAGE);
  return PackedBytes(data, std::free);
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
    m.layout.planes = data.bits > 4 ? 2 : 1;
    m.layout.scale = scale_type(data.dtype);
    m.layout.group_bytes = m.layout.planes * data.group * 8 + 2 * kTile * dtype_size(data.dtype);
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
