#include "tensor/unpack.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tercet {
namespace {

TEST(Unpack, EveryWidthReadsBitsInOrder) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    constexpr int64_t kCount = 64;
    std::vector<uint8_t> expected(kCount);
    std::vector<std::byte> packed(static_cast<size_t>(kCount * bits / 8));
    for (int64_t i = 0; i < kCount; ++i) {
      const auto q = static_cast<uint8_t>((i * 37 + 11) % (1 << bits));
      expected[static_cast<size_t>(i)] = q;
      for (int b = 0; b < bits; ++b) {
        const auto place = static_cast<size_t>(i * bits + b);
        packed[place / 8] |= static_cast<std::byte>((q >> b & 1) << (place % 8));
      }
    }
    std::vector<uint8_t> q(kCount);
    unpack_q(packed.data(), bits, kCount, q.data());
    EXPECT_EQ(q, expected) << bits;
  }
}

TEST(Unpack, LowBitsFirst) {
  const std::array packed{std::byte{0x21}, std::byte{0x43}};
  std::array<uint8_t, 4> q{};
  unpack_q(packed.data(), 4, 4, q.data());
  EXPECT_EQ(q, (std::array<uint8_t, 4>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace tercet
