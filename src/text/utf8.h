// Bytes to UTF-8 text, as they come.
#pragma once

#include <string>
#include <string_view>

namespace tercet {

/// Decodes a stream of bytes as Python's and Rust's lossy decoding does: each longest part that could have
/// begun a character becomes one U+FFFD. What add() appends is whole characters, each as soon as its last
/// byte is there; the pieces of a stream together are what its bytes at once would give.
class Utf8Decoder {
 public:
  void add(std::string_view bytes, std::string& out);
  /// The stream ends: an unfinished character becomes U+FFFD. The decoder may be used anew.
  void finish(std::string& out);

 private:
  std::string pending_;       // the bytes of a character that is not complete
  size_t missing_ = 0;        // how many it lacks
  unsigned char low_ = 0x80;  // bounds of the next byte
  unsigned char high_ = 0xbf;
};

}  // namespace tercet
