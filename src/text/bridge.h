// C++ handles for what tercet_bridge.h hands out.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tercet_bridge.h"

namespace tercet::bridge {

/// Owns a TercetBuffer.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { tercet_buffer_free(buffer_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// To be filled by one call.
  TercetBuffer* out() { return &buffer_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(buffer_.data), buffer_.size}; }
  /// The bytes as little-endian uint32.
  std::vector<uint32_t> words() const {
    std::vector<uint32_t> words(buffer_.size / sizeof(uint32_t));
    if (!words.empty()) std::memcpy(words.data(), buffer_.data, words.size() * sizeof(uint32_t));
    return words;
  }

 private:
  TercetBuffer buffer_ = {nullptr, 0, 0};
};

inline const uint8_t* bytes(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

}  // namespace tercet::bridge
