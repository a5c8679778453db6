#include "kv/page_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tercet {
namespace {

using testing::ElementsAre;

constexpr int32_t kPage = 4;

/// first, first + 1, …
std::vector<int32_t> ascending(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Runs a sequence over all of `tokens` and ends it; what it found cached.
int32_t pass(PageCache& cache, SequenceId id, const std::vector<int32_t>& tokens, bool keep = true) {
  const auto total = static_cast<int32_t>(tokens.size());
  const auto found = cache.begin(id, tokens, total);
  EXPECT_TRUE(found.has_value());
  cache.commit(id, std::span(tokens).subspan(static_cast<size_t>(found->tokens)));
  cache.end(id, keep);
  cache.check_integrity();
  return found->tokens;
}

void expect_counts(const PageCache& cache, int32_t free, int32_t cached, int32_t active) {
  const PageCounts counts = cache.counts();
  EXPECT_EQ(counts.free, free);
  EXPECT_EQ(counts.cached, cached);
  EXPECT_EQ(counts.active, active);
  EXPECT_EQ(counts.total, free + cached + active);
}

TEST(PageCache, PagesFollowTheTokens) {
  PageCache cache(8, kPage);
  const auto tokens = ascending(0, 9);
  ASSERT_EQ(cache.begin(1, tokens, 9)->tokens, 0);
  EXPECT_THAT(cache.pages(1), ElementsAre(0, 1, 2));
  expect_counts(cache, 5, 0, 3);
  cache.commit(1, std::span(tokens).first(5));
  EXPECT_EQ(cache.tokens(1), 5);
  cache.commit(1, std::span(tokens).subspan(5));
  EXPECT_EQ(cache.tokens(1), 9);
  EXPECT_TRUE(cache.reserve(1, 12));
  EXPECT_EQ(cache.pages(1).size(), 3U);
  EXPECT_TRUE(cache.reserve(1, 13));
  EXPECT_EQ(cache.pages(1).size(), 4U);
  EXPECT_TRUE(cache.reserve(1, 1));
  EXPECT_EQ(cache.pages(1).size(), 4U);
  cache.check_integrity();
  cache.end(1, true);
  expect_counts(cache, 5, 3, 0);
  cache.check_integrity();
}

TEST(PageCache, FullPagesAreSharedWhileTheirSequenceRuns) {
  PageCache cache(8, kPage);
  const auto tokens = ascending(0, 9);
  ASSERT_TRUE(cache.begin(1, tokens, 9));
  cache.commit(1, tokens);
  const auto found = cache.begin(2, joined(ascending(0, 8), {77, 78}), 10);
  EXPECT_EQ(found->tokens, 8);  // the ninth token is in a page that is not full, and differs
  EXPECT_FALSE(found->copy);
  EXPECT_THAT(cache.pages(2), ElementsAre(0, 1, 3));
  expect_counts(cache, 4, 0, 4);
  cache.check_integrity();
  cache.end(1, false);
  expect_counts(cache, 5, 0, 3);
  EXPECT_EQ(pass(cache, 3, tokens), 8);  // what its owner threw away is not cached
}

TEST(PageCache, PartOfAFullPageIsCopied) {
  PageCache cache(8, kPage);
  pass(cache, 1, ascending(0, 8));
  const auto found = cache.begin(2, joined(ascending(0, 6), {90, 91}), 9);
  EXPECT_EQ(found->tokens, 6);
  ASSERT_TRUE(found->copy);
  EXPECT_EQ(found->copy->from, 1);
  EXPECT_EQ(found->copy->to, cache.pages(2)[1]);
  EXPECT_EQ(cache.pages(2)[0], 0);
  EXPECT_EQ(cache.pages(2).size(), 3U);
  cache.check_integrity();
  cache.commit(2, std::vector<int32_t>{90, 91, 92});
  cache.end(2, true);
  cache.check_integrity();
  // Both branches are cached now.
  EXPECT_EQ(pass(cache, 3, ascending(0, 8)), 8);
  EXPECT_EQ(pass(cache, 4, joined(ascending(0, 6), {90, 91, 92})), 9);
}

TEST(PageCache, AllButTheLastTokenOfAFullPageIsCopied) {
  PageCache cache(8, kPage);
  const auto tokens = ascending(0, 8);
  pass(cache, 1, tokens);
  const auto found = cache.begin(2, std::span(tokens).first(7), 8);
  EXPECT_EQ(found->tokens, 7);
  EXPECT_TRUE(found->copy);
  cache.commit(2, std::span(tokens).last(1));
  // The page computed again gives way to its twin.
  EXPECT_THAT(cache.pages(2), ElementsAre(0, 1));
  expect_counts(cache, 6, 0, 2);
  cache.check_integrity();
}

TEST(PageCache, PartialPagesAreCachedAndCopied) {
  PageCache cache(8, kPage);
  pass(cache, 1, ascending(0, 6));
  expect_counts(cache, 6, 2, 0);
  const auto found = cache.begin(2, ascending(0, 7), 7);
  EXPECT_EQ(found->tokens, 6);
  ASSERT_TRUE(found->copy);
  EXPECT_EQ(found->copy->from, 1);
  cache.commit(2, std::vector<int32_t>{6});
  cache.end(2, true);
  // The longer page has replaced the shorter one; a shorter one adds nothing.
  expect_counts(cache, 6, 2, 0);
  EXPECT_EQ(pass(cache, 3, ascending(0, 5)), 5);
  expect_counts(cache, 6, 2, 0);
  // A full page replaces a partial one too.
  EXPECT_EQ(pass(cache, 4, ascending(0, 8)), 7);
  expect_counts(cache, 6, 2, 0);
}

TEST(PageCache, TheLongestOfSeveralBranchesIsTaken) {
  PageCache cache(16, kPage);
  pass(cache, 1, {5, 1, 1, 1});
  pass(cache, 2, {5, 3, 3, 3});
  pass(cache, 3, {5, 3, 7});
  EXPECT_EQ(cache.begin(4, std::vector<int32_t>{5, 3, 3, 2}, 4)->tokens, 3);
  EXPECT_EQ(cache.begin(5, std::vector<int32_t>{5, 3, 7, 9}, 4)->tokens, 3);
  EXPECT_EQ(cache.begin(6, std::vector<int32_t>{5, 1, 9, 9}, 4)->tokens, 2);
  EXPECT_EQ(cache.begin(7, std::vector<int32_t>{5, 2, 9, 9}, 4)->tokens, 1);
  EXPECT_EQ(cache.begin(8, std::vector<int32_t>{6}, 1)->tokens, 0);
  EXPECT_EQ(cache.begin(9, std::vector<int32_t>{}, 1)->tokens, 0);
  cache.check_integrity();
}

TEST(PageCache, WithoutKeepOnlyFullPagesStay) {
  PageCache cache(8, kPage);
  pass(cache, 1, ascending(0, 6), false);
  expect_counts(cache, 7, 1, 0);
  EXPECT_EQ(cache.begin(2, ascending(0, 6), 6)->tokens, 4);
}

TEST(PageCache, EqualSequencesAtOnceEndWithOneSetOfPages) {
  PageCache cache(8, kPage);
  const auto tokens = ascending(0, 8);
  ASSERT_TRUE(cache.begin(1, tokens, 8));
  ASSERT_TRUE(cache.begin(2, tokens, 8));
  expect_counts(cache, 4, 0, 4);
  cache.commit(1, tokens);
  cache.commit(2, tokens);
  EXPECT_EQ(cache.pages(1), cache.pages(2));
  expect_counts(cache, 6, 0, 2);
  cache.check_integrity();
}

TEST(PageCache, EvictsTheLeastRecentlyUsedLeaf) {
  PageCache cache(4, kPage);
  pass(cache, 1, ascending(0, 8));                // two pages
  pass(cache, 2, ascending(100, 4));              // one page
  EXPECT_EQ(pass(cache, 3, ascending(0, 8)), 8);  // used again, so 100 … is the older
  expect_counts(cache, 1, 3, 0);
  pass(cache, 4, ascending(200, 8));  // takes the free page and that of 100 …
  EXPECT_EQ(pass(cache, 5, ascending(0, 8)), 8);
  expect_counts(cache, 0, 4, 0);
  // Of a path the end goes first.
  pass(cache, 6, ascending(300, 4));
  EXPECT_EQ(cache.begin(7, ascending(0, 8), 8)->tokens, 8);
  EXPECT_EQ(cache.begin(8, ascending(200, 4), 4)->tokens, 4);
  EXPECT_FALSE(cache.begin(9, ascending(200, 8), 12));
  cache.check_integrity();
  cache.end(8, true);
  EXPECT_EQ(cache.begin(10, ascending(200, 8), 8)->tokens, 4);
}

TEST(PageCache, NeverEvictsWhatIsHeld) {
  PageCache cache(4, kPage);
  pass(cache, 1, ascending(0, 8));
  ASSERT_EQ(cache.begin(2, ascending(0, 8), 8)->tokens, 8);
  EXPECT_FALSE(cache.begin(3, ascending(100, 12), 12));
  expect_counts(cache, 2, 0, 2);
  ASSERT_TRUE(cache.begin(3, ascending(100, 8), 8));
  EXPECT_FALSE(cache.reserve(3, 9));
  EXPECT_EQ(cache.pages(3).size(), 2U);
  cache.check_integrity();
  cache.end(2, true);
  EXPECT_TRUE(cache.reserve(3, 9));
  expect_counts(cache, 0, 1, 3);
  cache.check_integrity();
}

TEST(PageCache, OwnPrefixIsNotCountedAsEvictable) {
  // Two pages are free and two cached; three are needed beside the prefix that holds those two.
  PageCache cache(4, kPage);
  pass(cache, 1, ascending(0, 8));
  EXPECT_FALSE(cache.begin(2, ascending(0, 8), 17));
  expect_counts(cache, 2, 2, 0);
  EXPECT_EQ(cache.sequences(), 0U);
  EXPECT_TRUE(cache.begin(2, ascending(0, 8), 16));
  cache.check_integrity();
}

TEST(PageCache, TheLastPageIsTakenOverWithoutACopy) {
  PageCache cache(2, kPage);
  pass(cache, 1, ascending(0, 8));
  const auto found = cache.begin(2, joined(ascending(0, 6), {90}), 8);
  EXPECT_EQ(found->tokens, 6);
  EXPECT_FALSE(found->copy);
  EXPECT_THAT(cache.pages(2), ElementsAre(0, 1));
  expect_counts(cache, 0, 0, 2);
  cache.check_integrity();
}

TEST(PageCacheDeath, BrokenUseStopsTheProgram) {
  PageCache cache(4, kPage);
  ASSERT_TRUE(cache.begin(1, {}, 4));
  EXPECT_DEATH(cache.begin(1, {}, 4), "contains");
  EXPECT_DEATH(cache.commit(1, ascending(0, 5)), "check failed");
  EXPECT_DEATH(cache.end(2, true), "check failed");
  EXPECT_DEATH(cache.begin(3, ascending(0, 5), 4), "check failed");
}

}  // namespace
}  // namespace tercet
