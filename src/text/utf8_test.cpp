#include "text/utf8.h"

#include <gtest/gtest.h>

#include <vector>

namespace tercet {
namespace {

std::string decode(std::string_view bytes) {
  Utf8Decoder decoder;
  std::string out;
  decoder.add(bytes, out);
  decoder.finish(out);
  return out;
}

TEST(Utf8, ReplacesLikePython) {
  // Right values: bytes.decode("utf-8", "replace") of Python 3.11.
  EXPECT_EQ(decode("aé€😀"), "aé€😀");
  EXPECT_EQ(decode("\x80"
                   "a"),
            "\ufffd"
            "a");
  EXPECT_EQ(decode("\xc3"), "\ufffd");
  EXPECT_EQ(decode("\xc0\xaf"), "\ufffd\ufffd");                      // overlong
  EXPECT_EQ(decode("\xe0\x80\xaf"), "\ufffd\ufffd\ufffd");            // overlong
  EXPECT_EQ(decode("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");            // a surrogate
  EXPECT_EQ(decode("\xf4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd");  // beyond U+10FFFF
  EXPECT_EQ(decode("\xf0\x9f\x98"
                   "x"),
            "\ufffd"
            "x");  // one for the longest beginning
  EXPECT_EQ(decode("\xf0\x9f\xf0\x9f\x98\x80"), "\ufffd😀");
  EXPECT_EQ(decode("\xe2\x82"), "\ufffd");
  EXPECT_EQ(decode("\xfe\xff"), "\ufffd\ufffd");
}

TEST(Utf8, NeitherHalvesNorWaits) {
  Utf8Decoder decoder;
  std::string out;
  const std::vector<std::pair<std::string, std::string>> steps = {{"a\xe2", "a"},
                                                                  {"\x82", ""},
                                                                  {"\xac", "€"},
                                                                  {"\xf0\x9f", ""},
                                                                  {"z", "\ufffdz"},
                                                                  {"\xff", "\ufffd"},
                                                                  {"\xf0\x80", "\ufffd\ufffd"}};
  for (const auto& [bytes, expected] : steps) {
    out.clear();
    decoder.add(bytes, out);
    EXPECT_EQ(out, expected);
  }
  out.clear();
  decoder.finish(out);
  EXPECT_EQ(out, "");
}

TEST(Utf8, EverySplitGivesTheSame) {
  const std::string bytes =
      "x\xe2\x82\xac\xf0\x9f\x98\x80\xf0\x9f\xc3\xa9\xed\xa0\x80\xf4\x8f\xbf\xbf\xe2\x28\xa1\xc3";
  const std::string whole = decode(bytes);
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); ++second) {
      Utf8Decoder decoder;
      std::string out;
      decoder.add(std::string_view(bytes).substr(0, first), out);
      decoder.add(std::string_view(bytes).substr(first, second - first), out);
      decoder.add(std::string_view(bytes).substr(second), out);
      decoder.finish(out);
      ASSERT_EQ(out, whole) << first << " " << second;
    }
  }
}

}  // namespace
}  // namespace tercet
