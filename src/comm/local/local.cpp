#include "comm/local/local.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/check.h"

namespace tercet {
namespace {

/// A rendezvous: everyone shows what they offer, then everyone reads, then everyone goes on.
struct Group {
  explicit Group(int size) : offers(static_cast<size_t>(size)), letters(static_cast<size_t>(size * size)) {}

  void wait_for_all(std::unique_lock<std::mutex>& lock) {
    const uint64_t round = rounds;
    if (++arrived == offers.size()) {
      arrived = 0;
      ++rounds;
      changed.notify_all();
    } else {
      changed.wait(lock, [&] { return rounds != round; });
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Rows> offers;  // [size]
  size_t arrived = 0;
  uint64_t rounds = 0;
  std::vector<Rows> letters;  // [from · size + to]; data is null where there is none
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->offers.size()); }

  void all_gather(Rows mine, Rows all) override {
    TERCET_CHECK_EQ(all.cols, mine.cols * size());
    TERCET_CHECK_EQ(all.rows, mine.rows);
    if (all.data == mine.data) return;
    std::unique_lock lock(group_->mutex);
    group_->offers[static_cast<size_t>(rank_)] = mine;
    group_->wait_for_all(lock);
    const std::vector<Rows> offers = group_->offers;
    lock.unlock();
    for (int from = 0; from < size(); ++from) {
      const Rows& part = offers[static_cast<size_t>(from)];
      TERCET_CHECK_EQ(part.rows, all.rows);
      TERCET_CHECK_EQ(part.cols, mine.cols);
      for (int64_t r = 0; r < part.rows; ++r) {
        std::copy_n(part.data + r * part.cols, part.cols, all.data + r * all.cols + from * part.cols);
      }
    }
    lock.lock();
    group_->wait_for_all(lock);
  }

  void send(Rows x, int to) override {
    std::unique_lock lock(group_->mutex);
    Rows& letter = group_->letters[static_cast<size_t>(rank_ * size() + to)];
    letter = x;
    group_->changed.notify_all();
    group_->changed.wait(lock, [&] { return letter.data == nullptr; });
  }

  void recv(Rows x, int from) override {
    std::unique_lock lock(group_->mutex);
    Rows& letter = group_->letters[static_cast<size_t>(from * size() + rank_)];
    group_->changed.wait(lock, [&] { return letter.data != nullptr; });
    TERCET_CHECK_EQ(letter.rows, x.rows);
    TERCET_CHECK_EQ(letter.cols, x.cols);
    std::copy_n(letter.data, x.rows * x.cols, x.data);
    letter = {};
    group_->changed.notify_all();
  }

 private:
  std::shared_ptr<Group> group_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_group(int size) {
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int rank = 0; rank < size; ++rank) ends.push_back(std::make_unique<LocalCommunicator>(group, rank));
  return ends;
}

}  // namespace tercet
