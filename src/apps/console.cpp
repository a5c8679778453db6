#include "apps/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace tercet {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Console Console::detect() {
  const std::string_view terminal = environment("TERM");
  return {.input_is_terminal = isatty(STDIN_FILENO) == 1,
          .output_is_terminal = isatty(STDOUT_FILENO) == 1,
          .error_is_terminal = isatty(STDERR_FILENO) == 1,
          .colours = environment("NO_COLOR").empty() && !terminal.empty() && terminal != "dumb"};
}

Result<void> print_piece(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && written) return {};
  return fail("cannot write to standard output");
}

void tell(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::string styled(std::string_view text, Style style, bool colours) {
  if (!colours) return std::string(text);
  constexpr const char* kCodes[] = {"1", "2", "31", "32"};
  return fmt::format("\033[{}m{}\033[0m", kCodes[static_cast<size_t>(style)], text);
}

std::string progress_line(std::string_view label, int64_t done, int64_t total, int width) {
  const double part = static_cast<double>(done) / static_cast<double>(total);
  const int label_width = static_cast<int>(label.size());
  const int bar = std::clamp(width - label_width - 8, 0, 40);
  const int full = static_cast<int>(part * bar);
  std::string line = fmt::format("{} {:#<{}}{:.<{}} {:3.0f} %", label, "", full, "", bar - full, part * 100);
  return line.substr(0, static_cast<size_t>(std::max(width, 0)));
}

Progress::Progress(const Console& console, std::string label, int64_t total)
    : label_(std::move(label)), total_(total), shown_(console.error_is_terminal && total > 0) {}

Progress::~Progress() {
  if (drawn_) tell("\r\033[K");
}

void Progress::update(int64_t done) {
  if (!shown_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  drawn_ = true;
  // One column is left free: a terminal wraps a line that fills it.
  tell(fmt::format("\r{}\033[K", progress_line(label_, std::clamp<int64_t>(done, 0, total_), total_,
                                               terminal_width() - 1)));
}

}  // namespace tercet
