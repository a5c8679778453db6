// Threads for loops of microseconds: a decoding step has hundreds of them, and waking a thread costs more
// than many of those loops take.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tercet::cpu {

class SpinningPool {
 public:
  /// body(begin, end, thread), thread in [0, threads()).
  using Body = std::function<void(int64_t, int64_t, int)>;

  /// `threads` counts the calling thread, so 1 starts none. After a loop a worker looks out for the next one
  /// for about a fifth of a millisecond, then sleeps.
  explicit SpinningPool(int threads);
  ~SpinningPool();
  SpinningPool(const SpinningPool&) = delete;
  SpinningPool& operator=(const SpinningPool&) = delete;

  int threads() const;

  /// Calls body over disjoint pieces that cover [0, count), each at most `grain` long; returns when all are
  /// done. Does not wait for workers that took no piece. One caller at a time; a body must not call it.
  void parallel_for(int64_t count, int64_t grain, const Body& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tercet::cpu
