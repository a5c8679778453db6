#include "weights/hashed_source.h"

#define XXH_INLINE_ALL
#include <fmt/ranges.h>
#include <xxhash.h>

#include <span>

#include "base/sha256.h"

namespace tercet {

Result<TensorBytes> HashedSource::read(const TensorInfo& tensor) const {
  TERCET_TRY(TensorBytes tensor_bytes, source_->read(tensor));
  {
    const std::lock_guard lock(mutex_);
    if (!hashes_.try_emplace(tensor.name).second) return tensor_bytes;
  }
  const XXH128_hash_t hash = XXH3_128bits(tensor_bytes.bytes.data(), tensor_bytes.bytes.size());
  const std::lock_guard lock(mutex_);
  hashes_[tensor.name] = {hash.low64, hash.high64};
  return tensor_bytes;
}

std::string HashedSource::digest() const {
  const std::lock_guard lock(mutex_);
  Sha256 all;
  for (const auto& [name, hash] : hashes_) {
    const TensorInfo& tensor = *find(name);
    const std::string line = fmt::format("{} {} [{}] {:016x}{:016x}\n", name, dtype_name(tensor.dtype),
                                         fmt::join(tensor.shape, ", "), hash[1], hash[0]);
    all.add(std::as_bytes(std::span(line)));
  }
  return all.hex();
}

}  // namespace tercet
