// The choices of a device as a table: which kernel runs for how many rows, and why.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/select/device.h"

namespace tercet::cuda {

struct TableLine {
  std::string_view operation;
  int64_t from = 0, to = 0;  // rows
  std::string_view kernel, why;
};

/// Of a model with Hy3's shapes and 4-bit weights in groups of 64, from 1 row to `most`; neighbouring counts
/// with one choice are one line.
std::vector<TableLine> kernel_table(const DeviceTraits& device, int64_t most = 8192);

}  // namespace tercet::cuda
