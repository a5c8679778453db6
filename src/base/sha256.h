#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tercet {

/// SHA-256 of bytes that come piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits. Ends the digest.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tercet
