#include "weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"
#include "weights/mapped_file.h"
#include "weights/safetensors_header.h"

namespace tercet {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

/// shape × element size, or nothing where that is no int64.
std::optional<int64_t> byte_size(const TensorInfo& info) {
  int64_t bytes = dtype_size(info.dtype);
  for (const int64_t extent : info.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

Result<void> check_entry(const HeaderEntry& entry) {
  const std::string& name = entry.info.name;
  if (entry.begin > entry.end) {
    return fail("tensor \"{}\": data_offsets [{}, {}] are in the wrong order", name, entry.begin, entry.end);
  }
  const std::optional<int64_t> bytes = byte_size(entry.info);
  if (!bytes) {
    return fail("tensor \"{}\": shape [{}] is too large", name, fmt::join(entry.info.shape, ", "));
  }
  if (static_cast<uint64_t>(*bytes) != entry.end - entry.begin) {
    return fail("tensor \"{}\": expected {} bytes for {} [{}], found {} in data_offsets [{}, {}]", name,
                *bytes, dtype_name(entry.info.dtype), fmt::join(entry.info.shape, ", "),
                entry.end - entry.begin, entry.begin, entry.end);
  }
  return {};
}

/// The format wants the tensors to cover the data: no gap, no overlap, nothing after the last.
Result<void> check_layout(std::vector<const HeaderEntry*> entries, uint64_t data_begin, uint64_t data_size) {
  std::ranges::sort(entries, {}, [](const HeaderEntry* e) { return std::pair(e->begin, e->end); });
  uint64_t covered = 0;
  const HeaderEntry* previous = nullptr;
  for (const HeaderEntry* entry : entries) {
    if (entry->end > data_size) {
      return fail(
          "tensor \"{}\": data_offsets [{}, {}] lie outside the file: expected at least {} bytes, found {}: "
          "it is "
          "truncated, or its header is wrong",
          entry->info.name, entry->begin, entry->end, data_begin + entry->end, data_begin + data_size);
    }
    if (entry->begin < covered) {
      return fail("tensor \"{}\": data_offsets [{}, {}] overlap tensor \"{}\" [{}, {}]", entry->info.name,
                  entry->begin, entry->end, previous->info.name, previous->begin, previous->end);
    }
    if (entry->begin > covered) {
      return fail(
          "tensor \"{}\": expected data_offsets that begin at {}, found [{}, {}]: bytes between belong to "
          "no tensor",
          entry->info.name, covered, entry->begin, entry->end);
    }
    covered = entry->end;
    previous = entry;
  }
  if (covered != data_size) {
    return fail("expected {} bytes after the header, found {}: the last belong to no tensor", covered,
                data_size);
  }
  return {};
}

Result<std::vector<SafetensorsEntry>> parse(std::span<const std::byte> file) {
  if (file.size() < sizeof(uint64_t)) {
    return fail("the file is truncated: expected at least 8 bytes, found {}", file.size());
  }
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), sizeof header_size);
  if (header_size > kMaxHeader) {
    return fail(
        "expected a header of at most {} bytes, found the length {}: this is no safetensors file, or a "
        "damaged one",
        kMaxHeader, header_size);
  }
  if (header_size > file.size() - sizeof header_size) {
    return fail("the header is longer than the file: expected {} bytes, found {}",
                header_size + sizeof header_size, file.size());
  }
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + sizeof header_size, header_size);
  if (!json.starts_with('{')) return fail("expected the header to begin with \"{{\"");
  TERCET_TRY(std::vector<HeaderEntry> header, parse_safetensors_header(json));

  std::ranges::sort(header, {}, [](const HeaderEntry& e) -> const std::string& { return e.info.name; });
  const auto twice = std::ranges::adjacent_find(
      header, [](const HeaderEntry& a, const HeaderEntry& b) { return a.info.name == b.info.name; });
  if (twice != header.end()) return fail("tensor \"{}\" occurs twice", twice->info.name);

  const uint64_t data_begin = sizeof header_size + header_size;
  std::vector<const HeaderEntry*> order;
  for (const HeaderEntry& entry : header) {
    TERCET_TRY_VOID(check_entry(entry));
    order.push_back(&entry);
  }
  TERCET_TRY_VOID(check_layout(std::move(order), data_begin, file.size() - data_begin));

  std::vector<SafetensorsEntry> entries;
  entries.reserve(header.size());
  for (HeaderEntry& entry : header) entries.push_back({std::move(entry.info), data_begin + entry.begin});
  return entries;
}

class SafetensorsSource final : public TensorSource {
 public:
  SafetensorsSource(std::string path, std::shared_ptr<const MappedFile> file,
                    std::vector<SafetensorsEntry> entries)
      : path_(std::move(path)), file_(std::move(file)) {
    for (SafetensorsEntry& entry : entries) {
      tensors_.push_back(std::move(entry.info));
      begins_.push_back(entry.begin);
    }
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }

  Result<TensorBytes> read(const TensorInfo& tensor) const override {
    const TensorInfo* own = find(tensor.name);
    TERCET_CHECK(own != nullptr);
    const auto size = static_cast<size_t>(own->bytes());
    const auto bytes = file_->bytes().subspan(begins_[static_cast<size_t>(own - tensors_.data())], size);
    const auto alignment = static_cast<uintptr_t>(dtype_size(own->dtype));
    if (reinterpret_cast<uintptr_t>(bytes.data()) % alignment == 0) return TensorBytes{bytes, file_};
    // Old writers did not pad their headers.
    auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    return TensorBytes{*copy, copy};
  }

  std::string origin(const TensorInfo&) const override { return path_; }

 private:
  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::vector<TensorInfo> tensors_;
  std::vector<size_t> begins_;
};

}  // namespace

Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file,
                                                        std::string_view origin) {
  auto entries = parse(file);
  if (!entries) return fail("{}: {}", origin, entries.error().message);
  return entries;
}

Result<std::shared_ptr<const TensorSource>> open_safetensors(const std::filesystem::path& path) {
  TERCET_TRY(std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  TERCET_TRY(std::vector<SafetensorsEntry> entries, parse_safetensors(file->bytes(), path.string()));
  return std::make_shared<SafetensorsSource>(path.string(), std::move(file), std::move(entries));
}

}  // namespace tercet
