#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string_view>

namespace tercet {
namespace {

TEST(Sha256, KnownAnswer) {  // FIPS 180-2, appendix B.1
  Sha256 digest;
  for (const std::string_view piece : {"a", "", "bc"}) digest.add(std::as_bytes(std::span(piece)));
  EXPECT_EQ(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace tercet
