#include "serve/ids.h"

#include <openssl/rand.h>

#include <array>

#include "base/check.h"

namespace tercet {

std::string random_id(std::string_view prefix) {
  std::array<unsigned char, 12> bytes{};
  TERCET_CHECK_EQ(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())), 1);
  std::string id(prefix);
  for (const unsigned char byte : bytes) id += fmt::format("{:02x}", byte);
  return id;
}

}  // namespace tercet
