#include "backend/cuda/select/generation.h"

#include <algorithm>

namespace tercet::cuda {
namespace {

/// Where the fast kernels have been proven (docs/exactness.md, "Last run on a GPU").
constexpr struct { int32_t major, minor; } kProven[] = {{9, 0}};

}  // namespace

Choice<KernelSet> choose_kernels(const DeviceTraits& device, std::optional<bool> verified) {
  if (device.plain) return {KernelSet::plain, "only the plain kernels are to run"};
  if (verified) {
    return *verified ? Choice<KernelSet>{KernelSet::fast, "`tercet verify device` found no fault"}
                     : Choice<KernelSet>{KernelSet::plain, "`tercet verify device` found other bits"};
  }
  const bool proven = std::any_of(std::begin(kProven), std::end(kProven), [&](const auto& known) {
    return known.major == device.major && known.minor == device.minor;
  });
  if (proven) return {KernelSet::fast, "proven on devices of this compute capability"};
  return {
      KernelSet::plain,
      "the fast kernels have never been proven on devices of its compute capability; `tercet verify device` "
      "does that, in a minute"};
}

}  // namespace tercet::cuda
