// A checkpoint's identity: what of it was read, down to the last byte.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "weights/tensor_source.h"

namespace tercet {

/// Hands on another source's tensors and hashes each one (XXH3, 128 bits) when it is first read: pieces of 1
/// MiB, and the pieces' hashes where there are several. That costs some 0.1 s/GB of a thread's time.
class HashedSource final : public TensorSource {
 public:
  HashedSource(std::shared_ptr<const TensorSource> source, int threads)
      : source_(std::move(source)), pool_(threads) {}

  const std::vector<TensorInfo>& tensors() const override { return source_->tensors(); }
  Result<TensorBytes> read(const TensorInfo& tensor) const override;
  std::string origin(const TensorInfo& tensor) const override { return source_->origin(tensor); }

  /// Of the tensors that were read, in whatever order and by how many: their names, types, shapes and bytes.
  /// 64 hexadecimal digits.
  std::string digest() const;

 private:
  using Hash = std::array<uint64_t, 2>;

  Hash hash(std::span<const std::byte> bytes) const;

  const std::shared_ptr<const TensorSource> source_;
  mutable std::mutex pool_mutex_;  // whom it does not belong to hashes alone
  mutable ThreadPool pool_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Hash> hashes_;  // by name
};

}  // namespace tercet
