#include "apps/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tercet {
namespace {

TEST(EditDistance, CountsTheFourKindsOfErrors) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("chat", "chaat"), 1);
  EXPECT_EQ(edit_distance("chat", "cat"), 1);
  EXPECT_EQ(edit_distance("chat", "cheat"), 1);
  EXPECT_EQ(edit_distance("chat", "chta"), 1);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // a swapped pair is not edited again
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Nearest, FindsTypingErrorsAndAbbreviations) {
  const std::vector<std::string> names{"--temp",  "--temperature", "--top-p",
                                       "--top-k", "--max-tokens",  "--threads"};
  EXPECT_EQ(nearest("--temprature", names), "--temperature");
  EXPECT_EQ(nearest("--tmep", names), "--temp");
  EXPECT_EQ(nearest("--max-token", names), "--max-tokens");
  EXPECT_EQ(nearest("--max", names), "--max-tokens");
  EXPECT_EQ(nearest("--thread", names), "--threads");
  EXPECT_EQ(nearest("--top-q", names), "--top-p");
}

TEST(Nearest, IsSilentWhereNothingIsNear) {
  const std::vector<std::string> names{"--temp", "--threads", "-n"};
  EXPECT_EQ(nearest("--frobnicate", names), "");
  EXPECT_EQ(nearest("--", names), "");
  EXPECT_EQ(nearest("-x", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("--temp", {}), "");
}

}  // namespace
}  // namespace tercet
