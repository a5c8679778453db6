#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace tercet {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 63, 64, 65, 1000}) {
      for (const int64_t grain : {1, 3, 64, 2000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_LE(end - begin, grain);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& hit : hits) EXPECT_EQ(hit, 1);
      }
    }
  }
}

TEST(ThreadPool, AvailableIsPositive) { EXPECT_GE(available_threads(), 1); }

}  // namespace
}  // namespace tercet
