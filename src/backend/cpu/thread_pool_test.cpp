#include "backend/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

namespace tercet::cpu {
namespace {

TEST(SpinningPool, EveryPieceOnceOnAnyNumberOfThreads) {
  for (int threads = 1; threads <= 4; ++threads) {
    SpinningPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count = 0; count < 200; ++count) {
      const int64_t grain = count % 7 + 1;
      std::vector<std::atomic<int>> times(static_cast<size_t>(count));
      pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread) {
        EXPECT_TRUE(thread >= 0 && thread < threads);
        EXPECT_LT(begin, end);
        for (int64_t i = begin; i < end; ++i) ++times[static_cast<size_t>(i)];
      });
      for (const auto& t : times) EXPECT_EQ(t.load(), 1);
    }
  }
}

TEST(SpinningPool, WakesThreadsThatSleep) {
  SpinningPool pool(2);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than a worker looks out
    std::atomic<int> arrived{0};
    // Each piece waits for the other: one thread alone would never end.
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int) {
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 2);
  }
}

TEST(SpinningPool, PiecesOfAThreadThatIsHeldUpGoToTheOthers) {
  SpinningPool pool(2);
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> done{0};
    // The fifth of eight pieces, the first of the second thread, ends after all others.
    pool.parallel_for(8, 1, [&](int64_t begin, int64_t, int) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (begin == 4 && done.load() < 7 && std::chrono::steady_clock::now() < until) {
        std::this_thread::yield();
      }
      if (begin == 4) {
        EXPECT_EQ(done.load(), 7);
      }
      ++done;
    });
    EXPECT_EQ(done.load(), 8);
  }
}

TEST(SpinningPool, IdleThreadsUseNoProcessor) {
  SpinningPool pool(4);
  pool.parallel_for(4, 1, [](int64_t, int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 50);
}

}  // namespace
}  // namespace tercet::cpu
