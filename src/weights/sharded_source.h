// The tensors of several files as one source.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "weights/tensor_source.h"

namespace tercet {

struct Shard {
  std::string file;
  std::shared_ptr<const TensorSource> tensors;
};

/// `index` says for each tensor in which file it is; one error lists all tensors for which that is not so.
/// `origin`: the index's name in that error.
Result<std::shared_ptr<const TensorSource>> make_sharded_source(
    const std::vector<Shard>& shards, const std::map<std::string, std::string>& index,
    const std::string& origin);

}  // namespace tercet
