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

Interrupts::Interrupts(const std::vector<int>& signals) {
  TERCET_CHECK(!alive.exchange(true));
  noted = false;
  struct sigaction action {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) {
    Before& before = before_.emplace_back();
    before.signal = signal;
    sigaction(signal, &action, &before.action);
  }
}

Interrupts::~Interrupts() {
  for (const Before& before : before_) sigaction(before.signal, &before.action, nullptr);
  alive = false;
}

bool Interrupts::requested() const { return noted; }

void Interrupts::clear() { noted = false; }

}  // namespace tercet
