// The JSON header of a safetensors file, as written: nothing is compared with the file yet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/tensor_source.h"

namespace tercet {

struct HeaderEntry {
  TensorInfo info;
  uint64_t begin = 0, end = 0;  // data_offsets
};

/// The tensors in the order of the text, with known dtypes and whole-number shapes and offsets; names may
/// repeat. Errors do not name the file.
Result<std::vector<HeaderEntry>> parse_safetensors_header(std::string_view json);

}  // namespace tercet
