// For tests: the checkpoint in the repository, and edited copies of its text files.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/read_file.h"

namespace tercet {

inline const std::filesystem::path kSourceDir = TERCET_SOURCE_DIR;
inline const std::filesystem::path kTinyModel = kSourceDir / "models/hy3-tiny";

inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
    text = text.substr(0, at).append(to).append(text, at + from.size());
  }
  return text;
}

/// A directory that goes away with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tercet-text-XXXXXX").string();
    TERCET_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  /// A text file of the checkpoint, every `from` replaced by `to`.
  std::filesystem::path copy(const std::string& name, std::string_view from = "\1",
                             std::string_view to = "") const {
    return write(name, replaced(read_file(kTinyModel / name).value(), from, to));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tercet
