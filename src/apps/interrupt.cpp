#include "apps/interrupt.h"

#include <atomic>

#include "base/check.h"

namespace tercet {
namespace {

// A signal handler can reach nothing but statics.
std::atomic<bool> noted{false};
std::atomic<bool> alive{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void note(int signal) {
  if (noted.exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

Interrupts::Interrupts() {
  TERCET_CHECK(!alive.exchange(true));
  noted = false;
  struct sigaction action {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_);
}

Interrupts::~Interrupts() {
  sigaction(SIGINT, &before_, nullptr);
  alive = false;
}

bool Interrupts::requested() const { return noted; }

void Interrupts::clear() { noted = false; }

}  // namespace tercet
