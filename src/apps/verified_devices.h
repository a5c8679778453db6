// What `tercet verify device` found on GPUs, kept in the user's cache folder, where later starts look it up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "backend/cuda/cuda_ops.h"
#include "base/error.h"

namespace tercet {

/// $XDG_CACHE_HOME/tercet/verified-devices, or that in ~/.cache; nothing where the environment names neither.
std::optional<std::filesystem::path> verified_devices_file();

/// What is kept of so many seconds of `tercet verify device` with so many failures: true or false; nothing of
/// a run that failed nowhere but was too short to prove anything.
std::optional<bool> verdict_of(int64_t failures, int64_t seconds);

/// What the file says of devices of this name and compute capability and of this version of the program.
std::optional<bool> read_verdict(const std::filesystem::path& file, const CudaDevice& device);

/// Replaces what the file said of them. Makes its folder. Errors name the file.
Result<void> write_verdict(const std::filesystem::path& file, const CudaDevice& device, bool passed);

}  // namespace tercet
