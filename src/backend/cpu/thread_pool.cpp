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

/// The pieces [next, end) of loop `number` that a thread still has, in one word.
struct Share {
  static constexpr int kPieceBits = 18;

  uint64_t number, next, end;

  static Share of(uint64_t word) {
    constexpr uint64_t kMask = (uint64_t{1} << kPieceBits) - 1;
    return {word >> (2 * kPieceBits), (word >> kPieceBits) & kMask, word & kMask};
  }
  uint64_t word() const { return (number << (2 * kPieceBits)) | (next << kPieceBits) | end; }
  bool open() const { return next < end; }
};

}  // namespace

/// Each thread has its own share of a loop's pieces and takes them in order, so threads rarely meet and each
/// reads one stretch of memory; one that has none left takes the last ones of another. Taking a piece is a
/// compare-and-swap of a share, which names its loop: a worker that comes late can never take one of a loop
/// that is over, and the other members are stable while a piece is left.
struct SpinningPool::State {
  /// On a cache line of its own, with all that its thread needs for a loop.
  struct alignas(128) Desk {
    std::atomic<uint64_t> share{0};
    std::atomic<const Body*> body{nullptr};
    std::atomic<int64_t> count{0}, grain{1};

    bool open() const { return Share::of(share.load(std::memory_order_acquire)).open(); }
  };

  explicit State(int threads) : desks(static_cast<size_t>(threads)) {}

  std::vector<Desk> desks;
  alignas(128) std::atomic<int64_t> unfinished{0};  // pieces
  alignas(128) std::atomic<int> sleeping{0};
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> workers;
  uint64_t loops = 0;

  /// Works on the loop of the thread's own desk until no piece is left.
  void drain(int thread) {
    const size_t own = static_cast<size_t>(thread);
    Desk& desk = desks[own];
    const uint64_t number = Share::of(desk.share.load(std::memory_order_acquire)).number;
    const Body* body = desk.body.load(std::memory_order_relaxed);
    const int64_t count = desk.count.load(std::memory_order_relaxed);
    const int64_t grain = desk.grain.load(std::memory_order_relaxed);
    int64_t done = 0;
    for (size_t i = 0; i < desks.size(); ++i) {
      std::atomic<uint64_t>& from = desks[(own + i) % desks.size()].share;
      uint64_t word = from.load(std::memory_order_acquire);
      for (Share left = Share::of(word); left.number == number && left.open(); left = Share::of(word)) {
        const uint64_t piece = i == 0 ? left.next++ : --left.end;
        if (!from.compare_exchange_weak(word, left.word(), std::memory_order_acq_rel)) continue;
        const int64_t begin = static_cast<int64_t>(piece) * grain;
        (*body)(begin, std::min(begin + grain, count), thread);
        ++done;
        word = from.load(std::memory_order_acquire);
      }
    }
    if (done > 0) unfinished.fetch_sub(done, std::memory_order_release);
  }

  /// True when there is work on the thread's desk, false to stop.
  bool wait_for_loop(int thread) {
    const Desk& desk = desks[static_cast<size_t>(thread)];
    const auto until = std::chrono::steady_clock::now() + kLookOut;
    do {
      for (int i = 0; i < kLooksBetweenClocks; ++i) {
        if (desk.open()) return true;
        relax();
      }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock lock(mutex);
    sleeping.fetch_add(1);
    wake.wait(lock, [&] { return stopping.load() || Share::of(desk.share.load()).open(); });
    sleeping.fetch_sub(1);
    return !stopping.load();
  }
};

SpinningPool::SpinningPool(int threads) {
  TERCET_CHECK_GE(threads, 1);
  state_ = std::make_unique<State>(threads);
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([this, i] {
      while (state_->wait_for_loop(i)) state_->drain(i);
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
  TERCET_CHECK_LT(pieces, int64_t{1} << Share::kPieceBits);
  const auto threads = static_cast<int64_t>(s.desks.size());
  s.unfinished.store(pieces, std::memory_order_relaxed);
  ++s.loops;
  for (int64_t t = threads; t-- > 0;) {  // rounded up, so that where pieces are few, this thread has one
    State::Desk& desk = s.desks[static_cast<size_t>(t)];
    desk.body.store(&body, std::memory_order_relaxed);
    desk.count.store(count, std::memory_order_relaxed);
    desk.grain.store(grain, std::memory_order_relaxed);
    const auto first_of = [&](int64_t of) {
      return static_cast<uint64_t>((pieces * of + threads - 1) / threads);
    };
    desk.share.store(Share{s.loops, first_of(t), first_of(t + 1)}.word());
  }
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
