// Writes a checkpoint as it is published, from any source.
#pragma once

#include <filesystem>

#include "base/error.h"
#include "weights/checkpoint.h"

namespace tercet {

/// Makes the directory if it is absent and writes config.json and model.safetensors, or, for more than one
/// shard, model-0000I-of-0000N.safetensors of about equal size and their index. Holds one tensor at a time.
/// The same checkpoint gives the same bytes.
Result<void> write_checkpoint(const std::filesystem::path& directory, const Checkpoint& checkpoint,
                              int shards);

}  // namespace tercet
