// How much memory this process may still take.
#pragma once

#include <cstdint>

namespace tercet {

/// Bytes: what the kernel holds available, capped by what the cgroup's limit leaves (so that a container is
/// told of its own share). The largest number where neither is known.
int64_t available_memory();

}  // namespace tercet
