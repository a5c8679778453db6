// Ctrl-C: the first asks for an end, the second enforces it.
#pragma once

#include <csignal>
#include <vector>

namespace tercet {

/// While it lives, SIGINT (or the signals that are given) is noted instead of ending the program; one that
/// arrives while another is noted ends it at once. Destroyed, it restores what was before. At most one lives
/// at a time.
class Interrupts {
 public:
  explicit Interrupts(const std::vector<int>& signals = {SIGINT});
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  /// Whether a signal was noted since construction or clear(). Any thread.
  bool requested() const;
  /// The request is fulfilled (the answer has stopped): the next one is a first one again.
  void clear();

 private:
  struct Before {
    int signal;
    struct sigaction action;
  };
  std::vector<Before> before_;
};

}  // namespace tercet
