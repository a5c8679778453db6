#include "apps/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

namespace tercet {
namespace {

TEST(Interrupts, TheFirstIsNotedAndCanBeCleared) {
  Interrupts interrupts;
  EXPECT_FALSE(interrupts.requested());
  std::raise(SIGINT);
  EXPECT_TRUE(interrupts.requested());
  interrupts.clear();
  EXPECT_FALSE(interrupts.requested());
  std::raise(SIGINT);
  EXPECT_TRUE(interrupts.requested());
}

TEST(Interrupts, ANewOneStartsWithoutARequest) {
  {
    Interrupts interrupts;
    std::raise(SIGINT);
  }
  EXPECT_FALSE(Interrupts().requested());
}

TEST(InterruptsDeathTest, TheSecondEndsTheProgram) {
  EXPECT_EXIT(
      {
        Interrupts interrupts;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptsDeathTest, DestroyedItRestoresWhatWasBefore) {
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_DFL);  // what a shell runs in the background starts with it ignored
        { Interrupts interrupts; }
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_IGN);
        { Interrupts interrupts; }
        std::raise(SIGINT);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tercet
