// Where a checkpoint's tensors come from: files, or a generator. Knows names, shapes and bytes; no model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace tercet {

struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;

  int64_t elements() const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
  int64_t bytes() const { return elements() * dtype_size(dtype); }
};

/// Bytes that stay valid as long as `owner` lives (a mapping, or generated memory). Alignment: that of the
/// element type at least.
struct TensorBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// Every tensor, sorted by name.
  virtual const std::vector<TensorInfo>& tensors() const = 0;

  /// All bytes of one of tensors(), row-major, little-endian. Thread-safe.
  virtual Result<TensorBytes> read(const TensorInfo& tensor) const = 0;

  /// For messages: the file that holds the tensor, or the generator's name.
  virtual std::string origin(const TensorInfo& tensor) const = 0;

  /// nullptr where there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
};

}  // namespace tercet
