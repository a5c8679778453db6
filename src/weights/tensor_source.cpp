#include "weights/tensor_source.h"

#include <algorithm>

namespace tercet {

const TensorInfo* TensorSource::find(std::string_view name) const {
  const std::vector<TensorInfo>& all = tensors();
  const auto found = std::ranges::lower_bound(all, name, {}, &TensorInfo::name);
  return found != all.end() && found->name == name ? &*found : nullptr;
}

}  // namespace tercet
