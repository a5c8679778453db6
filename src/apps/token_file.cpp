#include "apps/token_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

#include "weights/safetensors_writer.h"

namespace tercet {
namespace {

/// "tokens.12" → 12 for the prefix "tokens.".
std::optional<int> index_after(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() <= prefix.size() + suffix.size()) return std::nullopt;
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  int index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return index;
}

Result<std::vector<int32_t>> read_ids(const TensorSource& file, const TensorInfo& info) {
  if (info.dtype != DType::i16 && info.dtype != DType::i32) {
    return fail("{}: {}: expected I16 or I32, found {}", file.origin(info), info.name,
                dtype_name(info.dtype));
  }
  TERCET_TRY(const TensorBytes bytes, file.read(info));
  std::vector<int32_t> ids(static_cast<size_t>(info.elements()));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (info.dtype == DType::i32) {
      std::memcpy(&ids[i], bytes.bytes.data() + 4 * i, 4);
    } else {
      int16_t id;
      std::memcpy(&id, bytes.bytes.data() + 2 * i, 2);
      ids[i] = id;
    }
  }
  return ids;
}

std::string kinds_of(const TensorSource& file) {
  std::set<std::string> kinds;
  for (const TensorInfo& tensor : file.tensors()) {
    const size_t dot = tensor.name.find('.');
    if (dot != std::string::npos && tensor.name.ends_with(".logprobs"))
      kinds.insert(tensor.name.substr(0, dot));
  }
  std::string list;
  for (const std::string& kind : kinds) list += (list.empty() ? "" : ", ") + kind;
  return list.empty() ? "none" : list;
}

}  // namespace

Result<std::map<int, std::vector<int32_t>>> read_token_sequences(const TensorSource& file) {
  std::map<int, std::vector<int32_t>> sequences;
  for (const TensorInfo& tensor : file.tensors()) {
    const std::optional<int> index = index_after(tensor.name, "tokens.", "");
    if (!index) continue;
    if (tensor.shape.size() != 1 || tensor.shape[0] == 0) {
      return fail("{}: {}: expected one dimension of at least one token", file.origin(tensor), tensor.name);
    }
    TERCET_TRY(sequences[*index], read_ids(file, tensor));
  }
  if (sequences.empty()) return fail("no tensor is named tokens.0, tokens.1, …: nothing to score");
  return sequences;
}

Result<std::map<int, TopLogprobs>> read_top_logprobs(const TensorSource& file, const std::string& kind) {
  std::map<int, TopLogprobs> sequences;
  for (const TensorInfo& tensor : file.tensors()) {
    const std::optional<int> index = index_after(tensor.name, kind + ".", ".logprobs");
    if (!index) continue;
    const TensorInfo* ids = file.find(fmt::format("{}.{}.ids", kind, *index));
    if (tensor.dtype != DType::f32 || tensor.shape.size() != 2 || ids == nullptr ||
        ids->shape != tensor.shape) {
      return fail("{}: {}: expected F32 [positions, top] with ids of the same shape beside it",
                  file.origin(tensor), tensor.name);
    }
    TopLogprobs& out = sequences[*index];
    out.rows = tensor.shape[0];
    out.top = tensor.shape[1];
    TERCET_TRY(out.ids, read_ids(file, *ids));
    TERCET_TRY(const TensorBytes bytes, file.read(tensor));
    out.logprobs.resize(out.ids.size());
    std::memcpy(out.logprobs.data(), bytes.bytes.data(), bytes.bytes.size());
  }
  if (sequences.empty())
    return fail("no log-probabilities of kind {}; the file has: {}", kind, kinds_of(file));
  return sequences;
}

Result<void> write_top_logprobs(const std::filesystem::path& path,
                                const std::map<std::string, std::map<int, TopLogprobs>>& kinds) {
  std::vector<TensorInfo> tensors;
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& [kind, sequences] : kinds) {
    for (const auto& [index, top] : sequences) {
      tensors.push_back({fmt::format("{}.{}.ids", kind, index), DType::i32, {top.rows, top.top}});
      bytes.push_back(std::as_bytes(std::span(top.ids)));
      tensors.push_back({fmt::format("{}.{}.logprobs", kind, index), DType::f32, {top.rows, top.top}});
      bytes.push_back(std::as_bytes(std::span(top.logprobs)));
    }
  }
  TERCET_TRY(SafetensorsWriter writer, SafetensorsWriter::create(path, tensors));
  for (const auto part : bytes) TERCET_TRY_VOID(writer.write(part));
  return writer.finish();
}

}  // namespace tercet
