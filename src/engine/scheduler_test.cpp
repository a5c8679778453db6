#include "engine/scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int32_t> ascending(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Sequence sequence(SequenceId id, int32_t first, int32_t count) {
  return {.id = id, .tokens = ascending(first, count), .reusable = count};
}

/// "id:position+rows" of each slice, with a "!" where the last token is among them.
std::vector<std::string> summary(const Schedule& schedule) {
  std::vector<std::string> lines;
  for (const Slice& slice : schedule.slices) {
    lines.push_back(fmt::format("{}:{}+{}{}", slice.id, slice.position, slice.rows, slice.last ? "!" : ""));
  }
  return lines;
}

/// Carries the next step out: every sequence whose tokens are all computed gets one more.
Schedule step(Scheduler& scheduler) {
  Schedule schedule = scheduler.next();
  for (const Slice& slice : schedule.slices) {
    scheduler.computed(slice);
    if (slice.last) scheduler.append(slice.id, 7);
  }
  scheduler.check_integrity();
  return schedule;
}

TEST(Scheduler, NothingToDo) {
  Scheduler scheduler({.pages = 4, .max_rows = 8, .max_sequences = 2, .max_prompt_rows = 8});
  EXPECT_THAT(summary(scheduler.next()), IsEmpty());
  scheduler.check_integrity();
}

TEST(Scheduler, PromptsComeInChunksAfterSingleRows) {
  Scheduler scheduler({.pages = 16, .max_rows = 10, .max_sequences = 3, .max_prompt_rows = 10});
  scheduler.add(sequence(1, 0, 4));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:0+4!"));
  scheduler.add(sequence(2, 100, 25));
  scheduler.add(sequence(3, 200, 5));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:4+1!", "2:0+9"));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:5+1!", "2:9+9"));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:6+1!", "2:18+7!", "3:0+2"));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:7+1!", "2:25+1!", "3:2+3!"));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:8+1!", "2:26+1!", "3:5+1!"));
}

TEST(Scheduler, DeepRowsAreFewerBesideDecoding) {
  for (const bool decoding : {false, true}) {
    Scheduler scheduler({.pages = 400, .max_rows = 513, .max_sequences = 2, .max_prompt_rows = 512});
    if (decoding) {
      scheduler.add(sequence(1, 50000, 5));
      step(scheduler);
    }
    scheduler.add(sequence(2, 0, 20000));
    std::vector<int32_t> rows;
    for (bool last = false; !last;) {
      const Schedule schedule = step(scheduler);
      ASSERT_EQ(schedule.slices.size(), decoding ? 2u : 1u);
      rows.push_back(schedule.slices.back().rows);
      last = schedule.slices.back().last;
    }
    EXPECT_EQ(rows[0], 512);
    EXPECT_EQ(rows[1], decoding ? 455 : 512);  // 512 · 4096 / (4096 + 512)
    EXPECT_EQ(rows[rows.size() - 2], decoding ? 88 : 512);
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), 0), 20000);
  }
}

TEST(Scheduler, PromptRowsHaveTheirOwnLimit) {
  Scheduler scheduler({.pages = 16, .max_rows = 10, .max_sequences = 3, .max_prompt_rows = 2});
  scheduler.add(sequence(1, 0, 3));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:0+2"));
  scheduler.add(sequence(2, 100, 5));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:2+1!", "2:0+2"));
}

TEST(Scheduler, NoMoreRunThanMay) {
  Scheduler scheduler({.pages = 16, .max_rows = 100, .max_sequences = 2, .max_prompt_rows = 100});
  for (SequenceId id = 1; id <= 3; ++id) scheduler.add(sequence(id, static_cast<int32_t>(100 * id), 5));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:0+5!", "2:0+5!"));
  EXPECT_EQ(scheduler.waiting(), 1);
  scheduler.remove(1, true);
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("2:5+1!", "3:0+5!"));
  EXPECT_EQ(scheduler.running(), 2);
}

TEST(Scheduler, SlicesCarryThePagesUpToTheirEnd) {
  Scheduler scheduler({.pages = 16, .max_rows = 64, .max_sequences = 2, .max_prompt_rows = 64});
  scheduler.add(sequence(1, 0, 130));
  EXPECT_THAT(step(scheduler).slices[0].pages, ElementsAre(0));
  EXPECT_THAT(step(scheduler).slices[0].pages, ElementsAre(0, 1));
  EXPECT_THAT(step(scheduler).slices[0].pages, ElementsAre(0, 1, 2));
}

TEST(Scheduler, CachedPrefixesAreTakenOver) {
  Scheduler scheduler({.pages = 16, .max_rows = 200, .max_sequences = 2, .max_prompt_rows = 200});
  scheduler.add(sequence(1, 0, 130));
  step(scheduler);
  scheduler.remove(1, true);
  // All but the last token, the rest of its page by copy.
  scheduler.add(sequence(2, 0, 130));
  Schedule schedule = step(scheduler);
  EXPECT_THAT(summary(schedule), ElementsAre("2:129+1!"));
  EXPECT_EQ(scheduler.sequence(2).cached, 129);
  ASSERT_EQ(schedule.copies.size(), 1U);
  EXPECT_EQ(schedule.copies[0].from, 2);
  EXPECT_EQ(schedule.copies[0].to, schedule.slices[0].pages[2]);
  // As far as it may.
  Sequence limited = sequence(3, 0, 130);
  limited.reusable = 10;
  scheduler.add(limited);
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("2:130+1!", "3:10+120!"));
  EXPECT_EQ(scheduler.sequence(3).cached, 10);
}

TEST(Scheduler, APromptAskedForTwiceIsComputedOnce) {
  Scheduler scheduler({.pages = 16, .max_rows = 100, .max_sequences = 3, .max_prompt_rows = 100});
  scheduler.add(sequence(1, 0, 150));
  scheduler.add(sequence(2, 0, 150));
  Sequence apart = sequence(3, 0, 150);
  apart.reusable = 0;
  scheduler.add(std::move(apart));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:0+100"));
  // Its second page is not full yet; 50 rows are left, and nobody overtakes.
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:100+50!"));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:150+1!", "2:128+22!", "3:0+77"));
}

TEST(Scheduler, LessThanAPageInCommonIsNotWaitedFor) {
  Scheduler scheduler({.pages = 16, .max_rows = 200, .max_sequences = 2, .max_prompt_rows = 200});
  Sequence other = sequence(2, 0, 63);
  other.tokens.push_back(7);
  scheduler.add(sequence(1, 0, 100));
  scheduler.add(std::move(other));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:0+100!", "2:0+64!"));
}

TEST(Scheduler, TheNewestGivesWayWhenPagesRunOut) {
  // Each needs one page at first and a second one from token 65 on; there are three.
  Scheduler scheduler({.pages = 3, .max_rows = 200, .max_sequences = 4, .max_prompt_rows = 200});
  scheduler.add(sequence(1, 100, 64));
  scheduler.add(sequence(2, 200, 64));
  scheduler.add(sequence(3, 300, 60));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:0+64!", "2:0+64!", "3:0+60!"));
  // 1 takes 3's page, for 2 none is left.
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:64+1!"));
  EXPECT_EQ(scheduler.preemptions(), 2U);
  EXPECT_EQ(scheduler.running(), 1);
  EXPECT_EQ(scheduler.waiting(), 2);
  EXPECT_EQ(scheduler.sequence(2).tokens.size(), 65U);
  EXPECT_EQ(scheduler.pages().cached, 1);
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:65+1!"));  // 2 needs two pages now
  scheduler.remove(1, false);
  // What 2 had computed is still there; 3 starts again.
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("2:64+1!", "3:0+61!"));
  EXPECT_EQ(scheduler.sequence(2).cached, 0);  // of its first run
}

TEST(Scheduler, WhoWaitsInFrontIsNotOvertaken) {
  Scheduler scheduler({.pages = 4, .max_rows = 300, .max_sequences = 4, .max_prompt_rows = 300});
  scheduler.add(sequence(1, 0, 128));
  scheduler.add(sequence(2, 1000, 190));
  scheduler.add(sequence(3, 2000, 1));
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:0+128!"));
  EXPECT_EQ(scheduler.waiting(), 2);
  scheduler.remove(2, false);
  EXPECT_THAT(summary(step(scheduler)), ElementsAre("1:128+1!", "3:0+1!"));
}

TEST(SchedulerDeath, BrokenUseStopsTheProgram) {
  Scheduler scheduler({.pages = 2, .max_rows = 200, .max_sequences = 4, .max_prompt_rows = 200});
  scheduler.add(sequence(5, 0, 4));
  EXPECT_DEATH(scheduler.add(sequence(5, 0, 4)), "check failed");
  EXPECT_DEATH(scheduler.add({.id = 6, .tokens = {}}), "empty");
  EXPECT_DEATH(scheduler.remove(6, true), "check failed");
  EXPECT_DEATH(scheduler.append(5, 1), "check failed");
  const Schedule schedule = scheduler.next();
  scheduler.computed(schedule.slices[0]);
  EXPECT_DEATH(scheduler.computed(schedule.slices[0]), "check failed");
  EXPECT_DEATH(Scheduler({.pages = 1, .max_rows = 1, .max_sequences = 2, .max_prompt_rows = 1}), "max_rows");
}

}  // namespace
}  // namespace tercet
