#include "text/read_file.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

namespace tercet {

Result<std::string> read_file(const std::filesystem::path& path) {
  const auto failed = [&](int error) {
    return fail("{}: cannot be read: {}", path.string(), std::generic_category().message(error));
  };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return failed(errno);
  std::string text;
  char some[1 << 16];
  errno = 0;
  for (size_t read = 0; (read = std::fread(some, 1, sizeof some, file.get())) > 0;) {
    text.append(some, read);
    if (text.size() > kMostTextBytes) {
      return fail("{}: more than {} bytes, expected a text", path.string(), kMostTextBytes);
    }
  }
  if (std::ferror(file.get()) != 0) return failed(errno);
  return text;
}

}  // namespace tercet
