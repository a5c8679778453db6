// Philox4x32-10, the counter-based random generator of J. K. Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (SC'11). One function of (key, counter): no state, so that any draw can be made anywhere.
#pragma once

#include <array>
#include <cstdint>

namespace tercet {

/// 128 random bits for a 64-bit key and a 128-bit counter.
constexpr std::array<uint32_t, 4> philox4x32(uint64_t key, std::array<uint32_t, 4> counter) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

}  // namespace tercet
