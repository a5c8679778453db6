// Ctrl-C: the first asks for an end, the second enforces it.
#pragma once

#include <csignal>

namespace tercet {

/// While it lives, SIGINT is noted instead of ending the program; one that arrives while another is noted
/// ends it at once. Destroyed, it restores what was before. At most one lives at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  /// Whether a SIGINT was noted since construction or clear(). Any thread.
  bool requested() const;
  /// The request is fulfilled (the answer has stopped): the next one is a first one again.
  void clear();

 private:
  struct sigaction before_ {};
};

}  // namespace tercet
