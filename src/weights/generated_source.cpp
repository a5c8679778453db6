#include "weights/generated_source.h"

#include <algorithm>

#include "base/check.h"

namespace tercet {
namespace {

class GeneratedSource final : public TensorSource {
 public:
  GeneratedSource(std::vector<GeneratedTensor> tensors, std::string origin) : origin_(std::move(origin)) {
    std::ranges::sort(tensors, {},
                      [](const GeneratedTensor& t) -> const std::string& { return t.info.name; });
    for (GeneratedTensor& tensor : tensors) {
      TERCET_CHECK(infos_.empty() || infos_.back().name != tensor.info.name);
      infos_.push_back(std::move(tensor.info));
      makers_.push_back(std::move(tensor.make));
    }
  }

  const std::vector<TensorInfo>& tensors() const override { return infos_; }

  Result<TensorBytes> read(const TensorInfo& tensor) const override {
    const TensorInfo* own = find(tensor.name);
    TERCET_CHECK(own != nullptr);
    TERCET_TRY(TensorBytes bytes, makers_[static_cast<size_t>(own - infos_.data())]());
    TERCET_CHECK_EQ(static_cast<int64_t>(bytes.bytes.size()), own->bytes());
    return bytes;
  }

  std::string origin(const TensorInfo&) const override { return origin_; }

 private:
  std::string origin_;
  std::vector<TensorInfo> infos_;
  std::vector<std::function<Result<TensorBytes>()>> makers_;
};

}  // namespace

std::shared_ptr<const TensorSource> make_generated_source(std::vector<GeneratedTensor> tensors,
                                                          std::string origin) {
  return std::make_shared<GeneratedSource>(std::move(tensors), std::move(origin));
}

}  // namespace tercet
