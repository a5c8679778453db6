#include "apps/verified_devices.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "ops/arithmetic_version.h"

namespace tercet {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLeastSeconds = 60;
constexpr std::string_view kPassed = "passed ", kFailed = "failed ";

/// A line but for its verdict.
std::string key_of(const CudaDevice& device) {
  return fmt::format("tercet {} arithmetic {} compute capability {}.{} {}", TERCET_VERSION,
                     kArithmeticVersion, device.major, device.minor, device.name);
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool is_of(std::string_view line, std::string_view key) {
  return (line.starts_with(kPassed) || line.starts_with(kFailed)) && line.substr(kPassed.size()) == key;
}

}  // namespace

std::optional<fs::path> verified_devices_file() {
  const auto folder = [](const char* name) -> std::optional<fs::path> {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value != '/') return std::nullopt;  // the standard ignores relative ones
    return fs::path(value);
  };
  if (const auto cache = folder("XDG_CACHE_HOME")) return *cache / "tercet" / "verified-devices";
  if (const auto home = folder("HOME")) return *home / ".cache" / "tercet" / "verified-devices";
  return std::nullopt;
}

std::optional<bool> verdict_of(int64_t failures, int64_t seconds) {
  if (failures > 0) return false;
  return seconds >= kLeastSeconds ? std::optional(true) : std::nullopt;
}

std::optional<bool> read_verdict(const fs::path& file, const CudaDevice& device) {
  const std::string key = key_of(device);
  for (const std::string& line : lines_of(file)) {
    if (is_of(line, key)) return line.starts_with(kPassed);
  }
  return std::nullopt;
}

Result<void> write_verdict(const fs::path& file, const CudaDevice& device, bool passed) {
  const std::string key = key_of(device);
  std::vector<std::string> lines = lines_of(file);
  std::erase_if(lines, [&](const std::string& line) { return is_of(line, key); });
  lines.push_back(fmt::format("{}{}", passed ? kPassed : kFailed, key));
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  // Written beside it and renamed, so that whoever reads finds all of it or what was there before.
  const fs::path next = fmt::format("{}.{}", file.string(), getpid());
  std::ofstream out(next, std::ios::trunc);
  for (const std::string& line : lines) out << line << '\n';
  out.close();
  if (!out) return fail("{}: cannot be written", file.string());
  fs::rename(next, file, error);
  if (error) return fail("{}: cannot be written: {}", file.string(), error.message());
  return {};
}

}  // namespace tercet
