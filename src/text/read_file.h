// Small text files, whole.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"

namespace tercet {

inline Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto size =
      std::filesystem::is_regular_file(path, error) ? std::filesystem::file_size(path, error) : 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  if (error || !file.read(text.data(), static_cast<std::streamsize>(size))) {
    return fail("{}: cannot be read", path.string());
  }
  return text;
}

}  // namespace tercet
