// A source whose tensors are made when they are read.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "weights/tensor_source.h"

namespace tercet {

struct GeneratedTensor {
  TensorInfo info;
  std::function<Result<TensorBytes>()> make;  // gives info.bytes() bytes; may be called from any thread
};

/// `count` uninitialised values of T, and the same memory as a tensor's bytes.
template <class T>
std::pair<T*, TensorBytes> new_tensor(int64_t count) {
  auto memory = std::make_shared_for_overwrite<T[]>(static_cast<size_t>(count));
  T* values = memory.get();
  return {values, {std::as_bytes(std::span(values, static_cast<size_t>(count))), std::move(memory)}};
}

/// `origin`: the generator's name in messages. Names must differ.
std::shared_ptr<const TensorSource> make_generated_source(std::vector<GeneratedTensor> tensors,
                                                          std::string origin);

}  // namespace tercet
