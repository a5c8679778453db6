// Writes one safetensors file, tensor after tensor, so that no more than one needs to be in memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "weights/tensor_source.h"

namespace tercet {

class SafetensorsWriter {
 public:
  /// Creates the file and writes its header: the tensors in the given order, padded so that every tensor
  /// is aligned to its element size if the order is one of falling element sizes. The same arguments give
  /// the same bytes. `metadata` is what transformers asks of a checkpoint: {"format", "pt"}.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                          const std::map<std::string, std::string>& metadata = {});

  /// The bytes of the next tensor, in the header's order.
  Result<void> write(std::span<const std::byte> bytes);

  /// After the last tensor: flushes and closes. Without it the file is not complete.
  Result<void> finish();

 private:
  Result<void> check_stream() const;

  std::string path_;
  std::ofstream file_;
  std::vector<TensorInfo> tensors_;
  size_t next_ = 0;
};

}  // namespace tercet
