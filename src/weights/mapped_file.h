// A file's bytes, mapped read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "base/error.h"

namespace tercet {

class MappedFile {
 public:
  /// Costs address space only: pages are read when they are touched. The file must not shrink while mapped.
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace tercet
