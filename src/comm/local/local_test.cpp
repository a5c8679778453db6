#include "comm/local/local.h"

#include <gtest/gtest.h>

#include <thread>

namespace tercet {
namespace {

TEST(LocalGroup, GathersColumnsInRankOrder) {
  for (const int size : {1, 2, 3}) {
    auto ends = make_local_group(size);
    std::vector<std::vector<float>> gathered(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        for (int round = 0; round < 100; ++round) {
          std::vector<float> mine;  // [2, 3]: row, column and rank can be read off each value
          for (int row = 0; row < 2; ++row) {
            for (int col = 0; col < 3; ++col)
              mine.push_back(static_cast<float>(1000 * round + 100 * row + 10 * rank + col));
          }
          std::vector<float> all(static_cast<size_t>(6 * size));
          ends[static_cast<size_t>(rank)]->all_gather({mine.data(), 2, 3}, {all.data(), 2, 3 * size});
          mine.assign(6, -1.0F);  // must not reach the others
          for (int row = 0; row < 2; ++row) {
            for (int from = 0; from < size; ++from) {
              for (int col = 0; col < 3; ++col) {
                EXPECT_EQ(all[static_cast<size_t>(row * 3 * size + from * 3 + col)],
                          static_cast<float>(1000 * round + 100 * row + 10 * from + col));
              }
            }
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(LocalGroup, SendsInOrder) {
  auto ends = make_local_group(2);
  std::thread sender([&] {
    for (int i = 0; i < 100; ++i) {
      float x[2] = {static_cast<float>(i), static_cast<float>(-i)};
      ends[0]->send({x, 1, 2}, 1);
      x[0] = x[1] = 777.0F;
    }
  });
  for (int i = 0; i < 100; ++i) {
    float x[2];
    ends[1]->recv({x, 1, 2}, 0);
    EXPECT_EQ(x[0], static_cast<float>(i));
    EXPECT_EQ(x[1], static_cast<float>(-i));
  }
  sender.join();
}

}  // namespace
}  // namespace tercet
