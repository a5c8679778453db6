#include "weights/hashed_source.h"

#define XXH_INLINE_ALL
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <span>

#include "base/sha256.h"

namespace tercet {

Result<TensorBytes> HashedSource::read(const TensorInfo& tensor) const {
  TERCET_TRY(TensorBytes tensor_bytes, source_->read(tensor));
  {
    const std::lock_guard lock(mutex_);
    if (!hashes_.try_emplace(tensor.name).second) return tensor_bytes;
  }
  const Hash hashed = hash(tensor_bytes.bytes);
  const std::lock_guard lock(mutex_);
  hashes_[tensor.name] = hashed;
  return tensor_bytes;
}

HashedSource::Hash HashedSource::hash(std::span<const std::byte> bytes) const {
  constexpr size_t kPiece = size_t{1} << 20;
  const auto of = [](const void* data, size_t size) {
    const XXH128_hash_t hash = XXH3_128bits(data, size);
    return Hash{hash.low64, hash.high64};
  };
  if (bytes.size() <= kPiece) return of(bytes.data(), bytes.size());
  std::vector<Hash> pieces((bytes.size() + kPiece - 1) / kPiece);
  const auto hash_some = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto piece = bytes.subspan(i * kPiece, std::min(kPiece, bytes.size() - i * kPiece));
      pieces[i] = of(piece.data(), piece.size());
    }
  };
  const std::unique_lock pool(pool_mutex_, std::try_to_lock);
  const auto count = static_cast<int64_t>(pieces.size());
  if (pool) {
    pool_.parallel_for(count, 1, hash_some);
  } else {
    hash_some(0, count);
  }
  return of(pieces.data(), pieces.size() * sizeof(Hash));
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
