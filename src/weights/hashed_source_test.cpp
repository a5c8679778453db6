#include "weights/hashed_source.h"

#include <gtest/gtest.h>

#include "weights/generated_source.h"
#include "weights/test_files.h"

namespace tercet {
namespace {

using testing::tensor_of;

std::string digest_of(const std::vector<GeneratedTensor>& tensors, const std::vector<std::string>& read) {
  const HashedSource source(make_generated_source(tensors, "origin"), 3);
  for (const std::string& name : read) EXPECT_TRUE(source.read(*source.find(name)));
  return source.digest();
}

TEST(HashedSource, NamesWhatWasReadInAnyOrder) {
  const std::vector<GeneratedTensor> tensors = {tensor_of<uint32_t>("a", DType::u32, {2, 2}, {1, 2, 3, 4}),
                                                tensor_of<uint32_t>("b", DType::u32, {1}, {5})};
  const std::string both = digest_of(tensors, {"a", "b"});
  // As Python's xxhash and hashlib have it.
  EXPECT_EQ(both, "0c06b10e362202483932bcd7a5a86b1c93d5e46cbc8733f8505f4348441a9bc2");
  EXPECT_EQ(digest_of(tensors, {"b", "a", "b"}), both);
  EXPECT_NE(digest_of(tensors, {"a"}), both);
}

TEST(HashedSource, PiecesOfALargeTensor) {
  const auto digest = [](size_t changed) {
    std::vector<uint8_t> values((size_t{2} << 20) + 1);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i % 251);
    values[changed] ^= 1U;
    return digest_of({tensor_of<uint8_t>("a", DType::u8, {static_cast<int64_t>(values.size())}, values)},
                     {"a"});
  };
  // As Python's xxhash and hashlib have it.
  EXPECT_EQ(digest(0), "eb645f5a532d6825f5d7b111f06c3e0e5e5ed45d91e407b044e938cb45ee8192");
  EXPECT_NE(digest(1), digest(0));
  EXPECT_NE(digest(size_t{1} << 20), digest(0));
  EXPECT_NE(digest(size_t{2} << 20), digest(0));
}

TEST(HashedSource, EveryByteCounts) {
  const auto digest = [](const char* name, DType dtype, std::vector<int64_t> shape, uint32_t last) {
    return digest_of({tensor_of<uint32_t>(name, dtype, std::move(shape), {1, 2, 3, last})}, {name});
  };
  const std::string one = digest("a", DType::u32, {2, 2}, 4);
  EXPECT_NE(digest("a", DType::u32, {2, 2}, 4 + (1U << 31)), one);
  EXPECT_NE(digest("a", DType::u32, {4, 1}, 4), one);
  EXPECT_NE(digest("a", DType::f32, {2, 2}, 4), one);
  EXPECT_NE(digest("b", DType::u32, {2, 2}, 4), one);
}

}  // namespace
}  // namespace tercet
