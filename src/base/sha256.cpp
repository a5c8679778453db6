#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/check.h"

namespace tercet {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  TERCET_CHECK_EQ(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr), 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(state_->context); }

void Sha256::add(std::span<const std::byte> bytes) {
  TERCET_CHECK_EQ(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()), 1);
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  TERCET_CHECK_EQ(EVP_DigestFinal_ex(state_->context, digest, &size), 1);
  std::string out;
  for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

}  // namespace tercet
