#include "sampling/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace tercet {
namespace {

TEST(StopMatcher, PassesTextOnWithoutStops) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.add("abc", false), "abc");
  EXPECT_EQ(matcher.add("", true), "");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, EndsBeforeTheStopString) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.add("one END two", false), "one ");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.stop(), "END");
  EXPECT_EQ(matcher.add("three", true), "");
}

TEST(StopMatcher, HoldsBackOnlyAPossibleBeginning) {
  StopMatcher matcher({"<end>", "\n\n"});
  EXPECT_EQ(matcher.add("a <", false), "a ");
  EXPECT_EQ(matcher.add("e", false), "");
  EXPECT_EQ(matcher.add("x <en", false), "<ex ");
  EXPECT_EQ(matcher.add("d\n", false), "<end");
  EXPECT_EQ(matcher.add("b", false), "\nb");
  EXPECT_EQ(matcher.add("<end", false), "");
  EXPECT_EQ(matcher.add("", true), "<end");  // nothing follows, so it is text
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, HoldsBackOverlappingBeginnings) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.add("aaa", false), "a");
  EXPECT_EQ(matcher.add("ab", false), "a");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, TheFirstToBeCompletedCounts) {
  StopMatcher matcher({"abcd", "bc"});
  EXPECT_EQ(matcher.add("xabcd", false), "xa");
  EXPECT_EQ(matcher.stop(), "bc");
}

TEST(StopMatcher, OfThoseThatEndTogetherTheLongestCounts) {
  for (const auto& stops : {std::vector<std::string>{"bc", "abc"}, std::vector<std::string>{"abc", "bc"}}) {
    StopMatcher matcher(stops);
    EXPECT_EQ(matcher.add("xabc", false), "x");
    EXPECT_EQ(matcher.stop(), "abc");
  }
}

TEST(StopMatcher, KeepsCharactersWhole) {
  StopMatcher matcher({"äö"});
  EXPECT_EQ(matcher.add("xä", false), "x");
  EXPECT_EQ(matcher.add("ü", false), "äü");
  // 'å' and 'ä' share their first byte; it is not split off.
  EXPECT_EQ(matcher.add("å", false), "å");
}

/// What comes of a text that is known whole: looks at every end in turn.
std::string cut(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopMatcher, CutsDoNotMatter) {
  std::mt19937 random(1);
  const auto word = [&](uint32_t least, uint32_t most) {
    std::string s;
    for (uint32_t n = least + static_cast<uint32_t>(random() % (most - least + 1)); n > 0; --n) {
      s += static_cast<char>('a' + random() % 2);
    }
    return s;
  };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (uint32_t n = 1 + static_cast<uint32_t>(random() % 3); n > 0; --n) stops.push_back(word(2, 6));
    const std::string text = word(0, 24);
    StopMatcher matcher(stops);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 5;
      const std::string piece = matcher.add(std::string_view(text).substr(at, n), false);
      out += piece;
      at = std::min(text.size(), at + n);
      if (matcher.stopped()) break;
      // What is held back is the beginning of a stop string, and no longer one could be.
      const std::string held = text.substr(out.size(), at - out.size());
      const auto could_begin = [&](const std::string& s) {
        return std::any_of(stops.begin(), stops.end(), [&](const std::string& stop) {
          return s.size() < stop.size() && stop.compare(0, s.size(), s) == 0;
        });
      };
      ASSERT_TRUE(could_begin(held));
    }
    out += matcher.add("", true);
    ASSERT_EQ(out, cut(text, stops)) << text;
    stopped += matcher.stopped() ? 1 : 0;
  }
  EXPECT_GT(stopped, 1000);
  EXPECT_LT(stopped, 2900);
}

TEST(StopMatcherDeath, AnEmptyStringIsRefused) { EXPECT_DEATH(StopMatcher({"a", ""}), "empty"); }

}  // namespace
}  // namespace tercet
