#include "text/utf8.h"

namespace tercet {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

void Utf8Decoder::add(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (missing_ > 0) {
      if (byte >= low_ && byte <= high_) {
        pending_ += c;
        low_ = 0x80;
        high_ = 0xbf;
        if (--missing_ == 0) {
          out += pending_;
          pending_.clear();
        }
        continue;
      }
      finish(out);
    }
    if (byte < 0x80) {
      out += c;
    } else if (byte < 0xc2 || byte > 0xf4) {
      out += kReplacement;
    } else {
      pending_ = c;
      missing_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
      // Overlong forms, surrogates and what lies beyond U+10FFFF end at the second byte.
      low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
      high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
    }
  }
}

void Utf8Decoder::finish(std::string& out) {
  if (missing_ > 0) out += kReplacement;
  pending_.clear();
  missing_ = 0;
}

}  // namespace tercet
