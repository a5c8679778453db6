// A fixed set of threads for loops whose pieces are independent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tercet {

/// How many threads this process may keep busy: the CPU affinity mask, capped by the cgroup's CPU quota
/// (so that a container gets its share, not the host's count). At least 1.
int available_threads();

class ThreadPool {
 public:
  /// `threads` counts the calling thread, so 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Calls `body(begin, end)` over disjoint pieces that cover [0, count), each at most `grain` long, on all
  /// threads; returns when all are done. Which thread gets which piece is not defined: a body must write
  /// only what belongs to its piece. One caller at a time; a body must not call parallel_for.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tercet
