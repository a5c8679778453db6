// A checkpoint as it is published: config.json and one safetensors file, or shards with an index.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"
#include "weights/tensor_source.h"

namespace tercet {

struct Checkpoint {
  std::string config_json;
  std::shared_ptr<const TensorSource> tensors;
};

/// Opens a directory, or a single safetensors file with its config.json beside it. Reads the headers of all
/// files and no weights. One error lists every missing, faulty and superfluous shard, or every tensor on
/// which the index and the shards disagree. GGUF, FP8, mxfp4 and nvfp4 checkpoints are refused by name.
Result<Checkpoint> open_checkpoint(const std::filesystem::path& path);

}  // namespace tercet
