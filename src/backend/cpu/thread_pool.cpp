#include "backend/cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"

namespace tercet::cpu {
namespace {

constexpr auto kLookOut = std::chrono::microseconds(200);
constexpr int kLooksBetweenClocks = 64;

/// Tells the processor that this is a waiting loop.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

/// A loop is published as one word: its number above, the pieces nobody has taken yet below. Taking a piece
/// is a compare-and-swap of that word, so a worker that comes late can never take one of a loop that is over,
/// and the other members are stable while a piece is left.
struct SpinningPool::State {
  std::vector<std::thread> workers;
  std::atomic<uint64_t> loop{0};
  std::atomic<int64_t> unfinished{0};  // pieces
  std::atomic<const Body*> body{nullptr};
  std::atomic<int64_t> count{0}, grain{1}, pieces{0};

  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> sleeping{0};
  std::atomic<bool> stopping{false};

  static bool open(uint64_t word) { return (word & 0xffffffffU) != 0; }

  /// Takes pieces until none is left.
  void drain(int thread) {
    uint64_t word = loop.load(std::memory_order_acquire);
    while (open(word)) {
      const Body* f = body.load(std::memory_order_relaxed);
      const int64_t all = count.load(std::memory_order_relaxed);
      const int64_t size = grain.load(std::memory_order_relaxed);
      const int64_t total = pieces.load(std::memory_order_relaxed);
      if (!loop.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel)) continue;
      const int64_t begin = (total - static_cast<int64_t>(word & 0xffffffffU)) * size;
      (*f)(begin, std::min(begin + size, all), thread);
      unfinished.fetch_sub(1, std::memory_order_release);
      word = loop.load(std::memory_order_acquire);
    }
  }

  /// True when a loop is open, false to stop.
  bool wait_for_loop() {
    const auto until = std::chrono::steady_clock::now() + kLookOut;
    do {
      for (int i = 0; i < kLooksBetweenClocks; ++i) {
        if (open(loop.load(std::memory_order_acquire))) return true;
        relax();
      }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock lock(mutex);
    sleeping.fetch_add(1);
    wake.wait(lock, [&] { return stopping.load() || open(loop.load()); });
    sleeping.fetch_sub(1);
    return !stopping.load();
  }
};

SpinningPool::SpinningPool(int threads) : state_(std::make_unique<State>()) {
  TERCET_CHECK_GE(threads, 1);
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([this, i] {
      while (state_->wait_for_loop()) state_->drain(i);
    });
  }
}

SpinningPool::~SpinningPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping.store(true);
  }
  state_->wake.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int SpinningPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void SpinningPool::parallel_for(int64_t count, int64_t grain, const Body& body) {
  TERCET_CHECK_GE(grain, 1);
  State& s = *state_;
  if (s.workers.empty() || count <= grain) {
    if (count > 0) body(0, count, 0);
    return;
  }
  const int64_t pieces = (count + grain - 1) / grain;
  TERCET_CHECK_LT(pieces, int64_t{1} << 31);
  s.body.store(&body, std::memory_order_relaxed);
  s.count.store(count, std::memory_order_relaxed);
  s.grain.store(grain, std::memory_order_relaxed);
  s.pieces.store(pieces, std::memory_order_relaxed);
  s.unfinished.store(pieces, std::memory_order_relaxed);
  const uint64_t number = (s.loop.load(std::memory_order_relaxed) >> 32) + 1;
  s.loop.store((number << 32) | static_cast<uint64_t>(pieces));
  if (s.sleeping.load() > 0) {
    std::lock_guard lock(s.mutex);
    s.wake.notify_all();
  }
  s.drain(0);
  for (int looks = 0; s.unfinished.load(std::memory_order_acquire) != 0; ++looks) {
    // Where there are fewer processors than threads, the one that works on the last piece needs this one.
    if (looks < 1000) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace tercet::cpu
