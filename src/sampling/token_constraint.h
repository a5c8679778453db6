// What a grammar is to the engine: which tokens may come next.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"

namespace tercet {

/// Belongs to one request. Called by the engine's thread alone, during step(): mask() once before each draw,
/// then accept() with the drawn token. An error ends the request with that message.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Bit t of word t/32: token t may come next; vocabulary ÷ 32 words, rounded up. Empty: every token may.
  /// Tokens that end the answer are to be allowed exactly where it may end. At least one token is allowed.
  virtual Result<std::vector<uint32_t>> mask() = 0;

  virtual Result<void> accept(int32_t token) = 0;
};

}  // namespace tercet
