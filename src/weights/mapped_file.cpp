#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace tercet {
namespace {

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

tl::unexpected<Error> system_failure(const std::filesystem::path& path, const char* what) {
  return fail("{}: {}: {}", path.string(), what, std::generic_category().message(errno));
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) return system_failure(path, "cannot be opened");

  struct stat status {};
  if (::fstat(file.number, &status) != 0) return system_failure(path, "cannot be examined");
  if (!S_ISREG(status.st_mode)) return fail("{}: expected a regular file", path.string());
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile({}));

  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (address == MAP_FAILED) return system_failure(path, "cannot be mapped");
  return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte*>(address), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace tercet
