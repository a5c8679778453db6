// A checkpoint's identity: what of it was read, down to the last byte.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weights/tensor_source.h"

namespace tercet {

/// Hands on another source's tensors and hashes each one (XXH3, 128 bits) when it is first read, which costs
/// some 0.1 s/GB on the thread that reads.
class HashedSource final : public TensorSource {
 public:
  explicit HashedSource(std::shared_ptr<const TensorSource> source) : source_(std::move(source)) {}

  const std::vector<TensorInfo>& tensors() const override { return source_->tensors(); }
  Result<TensorBytes> read(const TensorInfo& tensor) const override;
  std::string origin(const TensorInfo& tensor) const override { return source_->origin(tensor); }

  /// Of the tensors that were read, in whatever order and by how many: their names, types, shapes and bytes.
  /// 64 hexadecimal digits.
  std::string digest() const;

 private:
  using Hash = std::array<uint64_t, 2>;

  const std::shared_ptr<const TensorSource> source_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Hash> hashes_;  // by name
};

}  // namespace tercet
