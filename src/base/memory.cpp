#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace tercet {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

/// The number after `key` in a file of lines "key number …".
int64_t field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word; file.ignore(kUnknown, '\n')) {
    int64_t value = 0;
    if (word == key && file >> value) return value;
  }
  return kUnknown;
}

int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : kUnknown;  // "max" is no number
}

}  // namespace

int64_t available_memory() {
  const int64_t kilobytes = field("/proc/meminfo", "MemAvailable:");
  const int64_t machine = kilobytes == kUnknown ? kUnknown : kilobytes * 1024;
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const int64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit == kUnknown || used == kUnknown) return machine;
  const int64_t file_pages = field("/sys/fs/cgroup/memory.stat", "inactive_file");  // given back when needed
  return std::min(machine, std::max<int64_t>(0, limit - used + (file_pages == kUnknown ? 0 : file_pages)));
}

}  // namespace tercet
