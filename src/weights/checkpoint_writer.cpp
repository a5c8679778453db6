#include "weights/checkpoint_writer.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"
#include "weights/safetensors_writer.h"

namespace tercet {
namespace {

Result<void> write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return fail("{}: cannot be written", path.string());
  return {};
}

/// Consecutive tensors, cut where the running sum passes equal parts of the whole.
std::vector<std::vector<TensorInfo>> divide(const std::vector<TensorInfo>& tensors, int shards) {
  int64_t total = 0;
  for (const TensorInfo& tensor : tensors) total += tensor.bytes();
  std::vector<std::vector<TensorInfo>> parts(1);
  int64_t written = 0;
  for (const TensorInfo& tensor : tensors) {
    if (static_cast<int64_t>(parts.size()) < shards && !parts.back().empty() &&
        written >= total / shards * static_cast<int64_t>(parts.size())) {
      parts.emplace_back();
    }
    parts.back().push_back(tensor);
    written += tensor.bytes();
  }
  // Falling element sizes keep every tensor aligned.
  for (std::vector<TensorInfo>& part : parts) {
    std::ranges::stable_sort(part, std::greater{}, [](const TensorInfo& t) { return dtype_size(t.dtype); });
  }
  return parts;
}

Result<void> write_file(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                        const TensorSource& source) {
  TERCET_TRY(SafetensorsWriter writer, SafetensorsWriter::create(path, tensors, {{"format", "pt"}}));
  for (const TensorInfo& tensor : tensors) {
    TERCET_TRY(const TensorBytes bytes, source.read(tensor));
    TERCET_TRY_VOID(writer.write(bytes.bytes));
  }
  return writer.finish();
}

}  // namespace

Result<void> write_checkpoint(const std::filesystem::path& directory, const Checkpoint& checkpoint,
                              int shards) {
  TERCET_CHECK_GE(shards, 1);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return fail("{}: cannot be created: {}", directory.string(), error.message());
  TERCET_TRY_VOID(write_text(directory / "config.json", checkpoint.config_json));

  const TensorSource& source = *checkpoint.tensors;
  const auto parts = divide(source.tensors(), shards);
  if (parts.size() == 1) return write_file(directory / "model.safetensors", parts[0], source);

  nlohmann::json index;
  int64_t total = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size());
    for (const TensorInfo& tensor : parts[i]) {
      index["weight_map"][tensor.name] = file;
      total += tensor.bytes();
    }
    TERCET_TRY_VOID(write_file(directory / file, parts[i], source));
  }
  index["metadata"]["total_size"] = total;
  return write_text(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace tercet
