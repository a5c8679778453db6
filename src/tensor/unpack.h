// The q of affine weights, out of their packed rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tercet {

/// The first `count` values of `bits` (2 to 8) each from a little-endian stream of bits: value i is in bits
/// [i·bits, (i + 1)·bits). Reads no byte beyond the last value's.
inline void unpack_q(const std::byte* packed, int bits, int64_t count, uint8_t* q) {
  if (bits == 4) {  // the common case, in a form that compilers vectorise
    for (int64_t i = 0; i < count / 2; ++i) {
      q[2 * i] = static_cast<uint8_t>(packed[i]) & 15U;
      q[2 * i + 1] = static_cast<uint8_t>(packed[i]) >> 4U;
    }
    if (count % 2 != 0) q[count - 1] = static_cast<uint8_t>(packed[count / 2]) & 15U;
    return;
  }
  const uint32_t mask = (1u << bits) - 1;
  uint32_t window = 0;
  int held = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (held < bits) {
      window |= static_cast<uint32_t>(*packed++) << held;
      held += 8;
    }
    q[i] = static_cast<uint8_t>(window & mask);
    window >>= bits;
    held -= bits;
  }
}

}  // namespace tercet
