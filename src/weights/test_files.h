// Small files and sources for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "weights/generated_source.h"

namespace tercet::testing {

/// A directory of its own for one test, removed at its end.
class TempDir {
 public:
  TempDir() {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() / fmt::format("tercet_test_{}_{}", ::getpid(), count++);
    std::filesystem::create_directories(path_);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The bytes of a safetensors file with this header, right or wrong, and `data_size` zero bytes.
inline std::string safetensors_bytes(const std::string& header, size_t data_size) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + std::string(data_size, '\0');
}

/// A tensor of these values.
template <class T>
GeneratedTensor tensor_of(std::string name, DType dtype, std::vector<int64_t> shape,
                          const std::vector<T>& values) {
  GeneratedTensor tensor;
  tensor.info = {std::move(name), dtype, std::move(shape)};
  tensor.make = [values]() -> Result<TensorBytes> {
    auto [copy, bytes] = new_tensor<T>(static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), copy);
    return bytes;
  };
  return tensor;
}

/// The bytes of a tensor that must be there.
inline std::string bytes_of(const TensorSource& source, const std::string& name) {
  const TensorInfo* info = source.find(name);
  if (info == nullptr) {
    ADD_FAILURE() << name << " is missing";
    return "";
  }
  const auto bytes = source.read(*info);
  if (!bytes) {
    ADD_FAILURE() << bytes.error().message;
    return "";
  }
  return {reinterpret_cast<const char*>(bytes->bytes.data()), bytes->bytes.size()};
}

/// The message of an expected error.
template <class T>
std::string error_of(const Result<T>& result) {
  if (!result) return result.error().message;
  ADD_FAILURE() << "expected an error";
  return "";
}

}  // namespace tercet::testing
