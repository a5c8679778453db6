// The safetensors parser on arbitrary files: it must refuse or give tensors that lie inside the file.
#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto entries = tercet::parse_safetensors(file, "fuzz");
  if (!entries) {
    TERCET_CHECK(entries.error().message.starts_with("fuzz: "));
    return 0;
  }
  size_t covered = 0;
  for (const tercet::SafetensorsEntry& entry : *entries) {
    const auto bytes = static_cast<size_t>(entry.info.bytes());
    TERCET_CHECK_LE(entry.begin, size);
    TERCET_CHECK_LE(bytes, size - entry.begin);
    covered += bytes;
  }
  TERCET_CHECK_LE(covered, size);
  return 0;
}
