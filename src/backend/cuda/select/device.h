// What the choice of kernels depends on of a device, and what a choice is.
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/cuda/kernels/limits.h"

namespace tercet::cuda {

struct DeviceTraits {
  int32_t major = 0, minor = 0;     // compute capability
  int32_t processors = 0;           // multiprocessors
  int64_t shared_bytes = 48 << 10;  // of shared memory that a block may have
  bool plain = false;               // the plain kernels are to run, whatever the device could do
  bool common = false;              // those of all generations are to run, though it has more of its own

  /// Whether the kernels with wgmma run there, which hold code for sm_90a alone.
  bool wgmma() const { return !plain && !common && major == 9 && minor == 0; }
  /// Whether kernels may begin before earlier ones end.
  bool overlaps() const { return !plain && major >= 9; }
};

/// A kernel, and the rule that chose it, in words for people.
template <class Kernel>
struct Choice {
  Kernel kernel;
  std::string_view why;
};

}  // namespace tercet::cuda
