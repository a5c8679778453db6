#include "apps/console.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tercet {
namespace {

TEST(Console, ColoursNeedATerminalTypeAndNoNoColor) {
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(Console::detect().colours);
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(Console::detect().colours);
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(Console::detect().colours);
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(Console::detect().colours);
  unsetenv("TERM");
  EXPECT_FALSE(Console::detect().colours);
}

TEST(Styled, AddsCodesOnlyWhereColoursAreWanted) {
  EXPECT_EQ(styled("x", Style::dim, true), "\033[2mx\033[0m");
  EXPECT_EQ(styled("x", Style::green, true), "\033[32mx\033[0m");
  EXPECT_EQ(styled("x", Style::dim, false), "x");
}

TEST(ProgressLine, ShowsThePartDoneWithinTheWidth) {
  EXPECT_EQ(progress_line("read", 0, 10, 22), "read ..........   0 %");
  EXPECT_EQ(progress_line("read", 5, 10, 22), "read #####.....  50 %");
  EXPECT_EQ(progress_line("read", 10, 10, 22), "read ########## 100 %");
  EXPECT_EQ(progress_line("read", 10, 10, 200).size(), 4 + 1 + 40 + 6U);
  EXPECT_EQ(progress_line("reading", 1, 10, 5), "readi");
}

TEST(Progress, ShowsNothingWhereNobodyLooks) {
  testing::internal::CaptureStderr();
  { Progress(Console{}, "read", 10).update(5); }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Progress, DrawsAtOnceThenSeldomAndClearsItsLine) {
  testing::internal::CaptureStderr();
  {
    Progress progress(Console{.error_is_terminal = true}, "read", 1000);
    for (int done = 0; done < 100; ++done) progress.update(done);
  }
  const std::string shown = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(shown.starts_with("\rread ....")) << shown;
  EXPECT_TRUE(shown.ends_with("\r\033[K")) << shown;
  EXPECT_LT(shown.size(), 100 * 20U);
}

}  // namespace
}  // namespace tercet
