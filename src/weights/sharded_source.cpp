#include "weights/sharded_source.h"

#include <algorithm>

#include "base/check.h"

namespace tercet {
namespace {

class ShardedSource final : public TensorSource {
 public:
  explicit ShardedSource(const std::vector<Shard>& shards) {
    for (const Shard& shard : shards) {
      for (const TensorInfo& tensor : shard.tensors->tensors()) parts_.emplace(tensor.name, shard.tensors);
      tensors_.insert(tensors_.end(), shard.tensors->tensors().begin(), shard.tensors->tensors().end());
    }
    std::ranges::sort(tensors_, {}, &TensorInfo::name);
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  Result<TensorBytes> read(const TensorInfo& tensor) const override { return part(tensor).read(tensor); }
  std::string origin(const TensorInfo& tensor) const override { return part(tensor).origin(tensor); }

 private:
  const TensorSource& part(const TensorInfo& tensor) const {
    const auto found = parts_.find(tensor.name);
    TERCET_CHECK(found != parts_.end());
    return *found->second;
  }

  std::map<std::string, std::shared_ptr<const TensorSource>> parts_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

Result<std::shared_ptr<const TensorSource>> make_sharded_source(
    const std::vector<Shard>& shards, const std::map<std::string, std::string>& index,
    const std::string& origin) {
  constexpr size_t kNamed = 10;
  std::vector<std::string> stale;
  for (const Shard& shard : shards) {
    for (const TensorInfo& tensor : shard.tensors->tensors()) {
      const auto entry = index.find(tensor.name);
      if (entry == index.end()) {
        stale.push_back(fmt::format("\"{}\": in {}, absent in the index", tensor.name, shard.file));
      } else if (entry->second != shard.file) {
        stale.push_back(fmt::format("\"{}\": in {}, expected in {}", tensor.name, shard.file, entry->second));
      }
    }
    for (const auto& [tensor, file] : index) {
      if (file == shard.file && shard.tensors->find(tensor) == nullptr) {
        stale.push_back(fmt::format("\"{}\": expected in {}, which lacks it", tensor, file));
      }
    }
  }
  if (!stale.empty()) {
    const size_t rest = stale.size() - std::min(stale.size(), kNamed);
    stale.resize(std::min(stale.size(), kNamed));
    return fail("{}: the index does not belong to the files:\n  {}{}", origin, fmt::join(stale, "\n  "),
                rest == 0 ? "" : fmt::format("\n  and {} more", rest));
  }
  return std::make_shared<ShardedSource>(shards);
}

}  // namespace tercet
