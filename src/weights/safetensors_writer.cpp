#include "weights/safetensors_writer.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/check.h"

namespace tercet {
namespace {

/// The length and the text of the header, padded with spaces to 8 bytes.
std::string header_bytes(const std::vector<TensorInfo>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format("\"__metadata__\":{}", nlohmann::json(metadata).dump());
  int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const int64_t end = offset + tensor.bytes();
    const nlohmann::json entry = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    if (text.size() > 1) text += ',';
    text += fmt::format("{}:{}", nlohmann::json(tensor.name).dump(), entry.dump());
    offset = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  uint64_t size = text.size();
  std::string bytes;
  for (int i = 0; i < 8; ++i, size >>= 8) bytes.push_back(static_cast<char>(size & 0xff));
  return bytes + text;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::vector<TensorInfo> tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  writer.path_ = path.string();
  writer.tensors_ = std::move(tensors);
  writer.file_.open(path, std::ios::binary | std::ios::trunc);
  if (!writer.file_) {
    return fail("{}: cannot be created: {}", writer.path_, std::generic_category().message(errno));
  }
  const std::string header = header_bytes(writer.tensors_, metadata);
  writer.file_.write(header.data(), static_cast<std::streamsize>(header.size()));
  TERCET_TRY_VOID(writer.check_stream());
  return writer;
}

Result<void> SafetensorsWriter::write(std::span<const std::byte> bytes) {
  TERCET_CHECK_LT(next_, tensors_.size());
  TERCET_CHECK_EQ(static_cast<int64_t>(bytes.size()), tensors_[next_].bytes());
  ++next_;
  file_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return check_stream();
}

Result<void> SafetensorsWriter::finish() {
  TERCET_CHECK_EQ(next_, tensors_.size());
  file_.close();
  return check_stream();
}

Result<void> SafetensorsWriter::check_stream() const {
  if (!file_) return fail("{}: cannot be written: {}", path_, std::generic_category().message(errno));
  return {};
}

}  // namespace tercet
