// Small text files, whole.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace tercet {

/// Bytes of a file at most: what is longer is no text that anybody would give.
constexpr size_t kMostTextBytes = size_t{256} << 20;

/// All of a file, a pipe or a device until its end.
Result<std::string> read_file(const std::filesystem::path& path);

}  // namespace tercet
