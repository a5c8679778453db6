#include "apps/numbers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace tercet {
namespace {

TEST(ParseWhole, ReadsSuffixesOfBothKinds) {
  const std::pair<const char*, int64_t> cases[] = {{"0", 0},
                                                   {"4096", 4096},
                                                   {"-1", -1},
                                                   {"32k", 32768},
                                                   {"32K", 32768},
                                                   {"32Ki", 32768},
                                                   {"32kB", 32000},
                                                   {"1.5M", 1572864},
                                                   {"8GiB", int64_t{8} << 30},
                                                   {"8gib", int64_t{8} << 30},
                                                   {"8G", int64_t{8} << 30},
                                                   {"8GB", 8'000'000'000},
                                                   {"0.25t", int64_t{1} << 38},
                                                   {"512B", 512},
                                                   {"3.0", 3},
                                                   {"2.2MB", 2'200'000},
                                                   {"9223372036854775807", INT64_MAX},
                                                   {"-2k", -2048}};
  for (const auto& [text, value] : cases) {
    const auto parsed = parse_whole(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().message;
    EXPECT_EQ(*parsed, value) << text;
  }
}

TEST(ParseWhole, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'' is not a whole number (like 4096, 32k or 8GiB)"},
      {"k", "'k' is not a whole number (like 4096, 32k or 8GiB)"},
      {"32x", "'32x' is not a whole number (like 4096, 32k or 8GiB)"},
      {"32kb8", "'32kb8' is not a whole number (like 4096, 32k or 8GiB)"},
      {"+3", "'+3' is not a whole number (like 4096, 32k or 8GiB)"},
      {" 3", "' 3' is not a whole number (like 4096, 32k or 8GiB)"},
      {"nan", "'nan' is not a whole number (like 4096, 32k or 8GiB)"},
      {"inf", "'inf' is not a whole number (like 4096, 32k or 8GiB)"},
      {"0.3k", "'0.3k' is not a whole number"},
      {"1.5", "'1.5' is not a whole number"},
      {"9223372036854775808", "'9223372036854775808' is too large"},
      {"9007199254740993.0k", "'9007199254740993.0k' is too large"},
      {"99999999T", "'99999999T' is too large"}};
  for (const auto& [text, message] : cases) {
    const auto parsed = parse_whole(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().message, message);
  }
}

TEST(ParseReal, ReadsDecimals) {
  EXPECT_EQ(parse_real("0.7").value(), 0.7);
  EXPECT_EQ(parse_real("-1").value(), -1.0);
  EXPECT_EQ(parse_real("1e-3").value(), 0.001);
}

TEST(ParseReal, RefusesTheRest) {
  for (const char* text : {"", "x", "0.7x", "0,7", "nan", "inf", "1e999"}) {
    const auto parsed = parse_real(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().message, fmt::format("'{}' is not a number (like 0.7)", text));
  }
}

}  // namespace
}  // namespace tercet
