// Reads one safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes without gaps.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/tensor_source.h"

namespace tercet {

/// Maps the file; nothing but the header is read before a tensor is. Everything the header says is checked
/// against the format and against the file's size. Errors name the file, the tensor, what was expected and
/// what was found.
Result<std::shared_ptr<const TensorSource>> open_safetensors(const std::filesystem::path& path);

struct SafetensorsEntry {
  TensorInfo info;
  size_t begin;  // of the tensor's bytes, from the start of the file
};

/// What open_safetensors makes of a file's bytes: the tensors, sorted by name. `origin` is the name of the
/// file in errors.
Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file,
                                                        std::string_view origin);

}  // namespace tercet
