#include "weights/safetensors.h"

#include <gmock/gmock.h>

#include "weights/safetensors_writer.h"
#include "weights/test_files.h"

namespace tercet {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::TempDir;

Result<std::vector<SafetensorsEntry>> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "f");
}

Result<std::vector<SafetensorsEntry>> parse(const std::string& header, size_t data_size) {
  return parse(safetensors_bytes(header, data_size));
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":{}}})", dtype, shape, offsets);
}

TEST(Safetensors, ReadsTensorsSortedByName) {
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":)" + entry("F32", "[2,1]", "[0,8]") +
                             R"(,"a":)" + entry("U8", "[]", "[8,9]") + R"(,"empty":)" +
                             entry("BF16", "[0,3]", "[9,9]") + "}  ";
  const auto entries = parse(header, 9);
  ASSERT_TRUE(entries) << entries.error().message;
  ASSERT_EQ(entries->size(), 3);
  EXPECT_EQ((*entries)[0].info.name, "a");
  EXPECT_EQ((*entries)[0].info.dtype, DType::u8);
  EXPECT_TRUE((*entries)[0].info.shape.empty());
  EXPECT_EQ((*entries)[0].info.elements(), 1);
  EXPECT_EQ((*entries)[0].begin, 8 + header.size() + 8);
  EXPECT_EQ((*entries)[1].info.name, "b");
  EXPECT_EQ((*entries)[1].info.shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ((*entries)[1].begin, 8 + header.size());
  EXPECT_EQ((*entries)[2].info.bytes(), 0);
}

TEST(Safetensors, AFileWithoutTensorsIsWhole) {
  const auto entries = parse("{}", 0);
  ASSERT_TRUE(entries) << entries.error().message;
  EXPECT_TRUE(entries->empty());
}

TEST(Safetensors, RefusesDamagedFiles) {
  EXPECT_EQ(error_of(parse("")), "f: the file is truncated: expected at least 8 bytes, found 0");
  EXPECT_EQ(error_of(parse("1234567")), "f: the file is truncated: expected at least 8 bytes, found 7");
  EXPECT_EQ(error_of(parse(std::string("\x10\0\0\0\0\0\0\0{}", 10))),
            "f: the header is longer than the file: expected 24 bytes, found 10");
  EXPECT_EQ(
      error_of(parse(std::string(16, '\xff'))),
      "f: expected a header of at most 100000000 bytes, found the length 18446744073709551615: this is no "
      "safetensors file, or a damaged one");
  EXPECT_EQ(error_of(parse("[]", 0)), "f: expected the header to begin with \"{\"");
  EXPECT_EQ(error_of(parse("", 0)), "f: expected the header to begin with \"{\"");
  EXPECT_THAT(error_of(parse("{\"a\":", 0)), HasSubstr("f: header is not valid JSON: "));
  EXPECT_THAT(error_of(parse("{} x", 0)), HasSubstr("f: header is not valid JSON: "));
  EXPECT_THAT(error_of(parse("{\"\xff\":{}}", 0)), HasSubstr("f: header is not valid JSON: "));
  // Nesting costs no stack: 10 MB of brackets are an error like any other.
  EXPECT_EQ(error_of(parse("{\"a\":" + std::string(10'000'000, '['), 0)),
            "f: tensor \"a\": expected an object, found an array");
}

TEST(Safetensors, RefusesEntriesOutOfForm) {
  const auto error = [](const std::string& value) { return error_of(parse("{\"a\":" + value + "}", 4)); };
  EXPECT_EQ(error("1"), "f: tensor \"a\": expected an object, found a number");
  EXPECT_EQ(error("null"), "f: tensor \"a\": expected an object, found null");
  EXPECT_EQ(error("true"), "f: tensor \"a\": expected an object, found a boolean");
  EXPECT_EQ(error("\"x\""), "f: tensor \"a\": expected an object, found a string");
  EXPECT_EQ(error(R"({"shape":[1],"data_offsets":[0,4]})"), "f: tensor \"a\": dtype is missing");
  EXPECT_EQ(error(R"({"dtype":"F32","data_offsets":[0,4]})"), "f: tensor \"a\": shape is missing");
  EXPECT_EQ(error(R"({"dtype":"F32","shape":[1]})"), "f: tensor \"a\": data_offsets is missing");
  EXPECT_EQ(error(R"({"dtype":"F32","dtype":"F32"})"), "f: tensor \"a\": dtype is given twice");
  EXPECT_EQ(error(R"({"shape":[1],"shape":[1]})"), "f: tensor \"a\": shape is given twice");
  EXPECT_EQ(error(R"({"data_offsets":[0,4],"data_offsets":[0,4]})"),
            "f: tensor \"a\": data_offsets is given twice");
  EXPECT_EQ(error(R"({"dtype":["F32"]})"),
            "f: tensor \"a\": expected dtype (a string), shape and data_offsets (arrays), found an array as "
            "\"dtype\"");
  EXPECT_EQ(error(R"({"stride":1})"),
            "f: tensor \"a\": expected dtype (a string), shape and data_offsets (arrays), found a number as "
            "\"stride\"");
  EXPECT_EQ(error(R"({"shape":{}})"),
            "f: tensor \"a\": expected dtype (a string), shape and data_offsets (arrays), found an object as "
            "\"shape\"");
  EXPECT_EQ(error(entry("F4", "[1]", "[0,4]")), "f: tensor \"a\": unknown dtype \"F4\"");
  EXPECT_EQ(error(entry("F32", "[-1]", "[0,4]")),
            "f: tensor \"a\": shape: expected whole numbers, found the negative number -1");
  EXPECT_EQ(error(entry("F32", "[1.0]", "[0,4]")),
            "f: tensor \"a\": shape: expected whole numbers, found the number 1.0");
  EXPECT_EQ(error(entry("F32", "[[1]]", "[0,4]")),
            "f: tensor \"a\": shape: expected whole numbers, found an array");
  EXPECT_EQ(error(entry("F32", "[18446744073709551615]", "[0,4]")),
            "f: tensor \"a\": shape: extent 18446744073709551615 is out of range");
  EXPECT_EQ(error(entry("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]")),
            "f: tensor \"a\": shape has more than 8 extents");
  EXPECT_EQ(error(entry("F32", "[1]", "[0]")), "f: tensor \"a\": data_offsets: expected 2 numbers, found 1");
  EXPECT_EQ(error(entry("F32", "[1]", "[0,4,8]")),
            "f: tensor \"a\": data_offsets: expected 2 numbers, found 3");
  EXPECT_EQ(error_of(parse(R"({"__metadata__":{"n":1}})", 0)),
            "f: header: expected strings in __metadata__, found a number");
}

TEST(Safetensors, RefusesSizesThatDisagree) {
  const auto error = [](const std::string& value) { return error_of(parse("{\"a\":" + value + "}", 8)); };
  EXPECT_EQ(error(entry("F32", "[2]", "[8,0]")),
            "f: tensor \"a\": data_offsets [8, 0] are in the wrong order");
  EXPECT_EQ(error(entry("F32", "[3]", "[0,8]")),
            "f: tensor \"a\": expected 12 bytes for F32 [3], found 8 in data_offsets [0, 8]");
  EXPECT_EQ(error(entry("F32", "[4611686018427387904]", "[0,8]")),
            "f: tensor \"a\": shape [4611686018427387904] is too large");
  EXPECT_EQ(error(entry("U8", "[4294967296,4294967296]", "[0,8]")),
            "f: tensor \"a\": shape [4294967296, 4294967296] is too large");
}

TEST(Safetensors, RefusesLayoutsWithGapsAndOverlaps) {
  const auto error = [](const std::string& a, const std::string& b, size_t size) {
    return error_of(parse("{\"a\":" + a + ",\"b\":" + b + "}", size));
  };
  const std::string first = entry("F32", "[1]", "[0,4]");
  EXPECT_EQ(error(first, entry("F32", "[1]", "[2,6]"), 8),
            "f: tensor \"b\": data_offsets [2, 6] overlap tensor \"a\" [0, 4]");
  EXPECT_EQ(error(first, first, 8), "f: tensor \"b\": data_offsets [0, 4] overlap tensor \"a\" [0, 4]");
  EXPECT_EQ(error(first, entry("F32", "[1]", "[8,12]"), 12),
            "f: tensor \"b\": expected data_offsets that begin at 4, found [8, 12]: bytes between belong to "
            "no tensor");
  EXPECT_EQ(error(first, entry("F32", "[1]", "[4,8]"), 9),
            "f: expected 8 bytes after the header, found 9: the last belong to no tensor");
  EXPECT_EQ(error_of(parse("{\"a\":" + first + ",\"a\":" + entry("F32", "[1]", "[4,8]") + "}", 8)),
            "f: tensor \"a\" occurs twice");

  const std::string whole = "{\"a\":" + first + ",\"b\":" + entry("F32", "[1]", "[4,8]") + "}";
  EXPECT_EQ(
      error_of(parse(whole, 7)),
      fmt::format(
          "f: tensor \"b\": data_offsets [4, 8] lie outside the file: expected at least {} bytes, found "
          "{}: it is truncated, or its header is wrong",
          16 + whole.size(), 15 + whole.size()));
  const std::string far = entry("U8", "[9223372036854775807]", "[4,9223372036854775811]");
  EXPECT_THAT(error(first, far, 8),
              HasSubstr("f: tensor \"b\": data_offsets [4, 9223372036854775811] lie outside"));
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = safetensors_bytes(
      "{\"a\":" + entry("F32", "[2]", "[0,8]") + ",\"b\":" + entry("U8", "[1]", "[8,9]") + "}", 9);
  ASSERT_TRUE(parse(whole));
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(parse(whole.substr(0, size))) << size;
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TempDir dir;
  const std::vector<TensorInfo> tensors = {{"z", DType::f32, {2, 2}}, {"a \"quoted\"", DType::u8, {3}}};
  const std::vector<float> z = {1, -2, 3.5F, 0};
  const std::vector<uint8_t> a = {7, 8, 9};
  for (const char* name : {"x", "y"}) {
    auto writer = SafetensorsWriter::create(dir / name, tensors, {{"format", "pt"}});
    ASSERT_TRUE(writer) << writer.error().message;
    ASSERT_TRUE(writer->write(std::as_bytes(std::span(z))));
    ASSERT_TRUE(writer->write(std::as_bytes(std::span(a))));
    ASSERT_TRUE(writer->finish());
  }
  EXPECT_EQ(testing::read_file(dir / "x"), testing::read_file(dir / "y"));

  const auto source = open_safetensors(dir / "x");
  ASSERT_TRUE(source) << source.error().message;
  ASSERT_EQ((*source)->tensors().size(), 2);
  EXPECT_EQ((*source)->find("b"), nullptr);
  const TensorInfo* found = (*source)->find("z");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->dtype, DType::f32);
  EXPECT_EQ(found->shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ((*source)->origin(*found), (dir / "x").string());
  EXPECT_EQ(testing::bytes_of(**source, "z"), std::string(reinterpret_cast<const char*>(z.data()), 16));
  EXPECT_EQ(testing::bytes_of(**source, "a \"quoted\""), "\x07\x08\x09");
}

TEST(Safetensors, BytesAreAlignedWhereTheFileIsNot) {
  const TempDir dir;
  std::string header =
      "{\"a\":" + entry("U8", "[1]", "[0,1]") + ",\"b\":" + entry("F32", "[1]", "[1,5]") + "}";
  std::string bytes = safetensors_bytes(header, 1);
  const float value = 1.5F;
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  const auto source = open_safetensors(dir.write("f", bytes));
  ASSERT_TRUE(source) << source.error().message;
  const auto read = (*source)->read(*(*source)->find("b"));
  ASSERT_TRUE(read);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(read->bytes.data()) % alignof(float), 0);
  EXPECT_EQ(*reinterpret_cast<const float*>(read->bytes.data()), value);
}

TEST(Safetensors, BytesOutliveTheSource) {
  const TempDir dir;
  const auto path =
      dir.write("f", safetensors_bytes("{\"a\":" + entry("U8", "[4]", "[0,4]") + "}", 0) + "abcd");
  TensorBytes bytes;
  {
    const auto source = open_safetensors(path);
    ASSERT_TRUE(source);
    bytes = *(*source)->read(*(*source)->find("a"));
  }
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.bytes.data()), 4), "abcd");
}

TEST(Safetensors, FilesThatCannotBeOpened) {
  const TempDir dir;
  EXPECT_EQ(error_of(open_safetensors(dir / "none")),
            (dir / "none").string() + ": cannot be opened: No such file or directory");
  EXPECT_EQ(error_of(open_safetensors(dir.path())), dir.path().string() + ": expected a regular file");
  EXPECT_EQ(error_of(open_safetensors(dir.write("empty", ""))),
            (dir / "empty").string() + ": the file is truncated: expected at least 8 bytes, found 0");
  EXPECT_EQ(error_of(SafetensorsWriter::create(dir / "no" / "where", {})),
            (dir / "no" / "where").string() + ": cannot be created: No such file or directory");
}

TEST(SafetensorsWriter, AFullDiskIsAnError) {
  auto writer = SafetensorsWriter::create("/dev/full", {{"a", DType::u8, {1 << 20}}});
  Result<void> status;
  if (writer) {
    status = writer->write(std::vector<std::byte>(1 << 20));
    if (status) status = writer->finish();
  } else {
    status = tl::unexpected(writer.error());
  }
  EXPECT_EQ(error_of(status), "/dev/full: cannot be written: No space left on device");
}

}  // namespace
}  // namespace tercet
