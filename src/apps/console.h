// What a person sees: pieces of answers as they come, and beside them colours and progress, on a terminal
// only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tercet {

/// What the standard streams are connected to.
struct Console {
  bool input_is_terminal = false;
  bool output_is_terminal = false;
  bool error_is_terminal = false;
  bool colours = false;  // wanted where a stream is a terminal

  /// Looks at the streams and at the environment (NO_COLOR, TERM).
  static Console detect();
};

/// A piece of an answer, and what waits before it, to standard output at once. An error where that cannot be
/// written.
Result<void> print_piece(std::string_view text);

/// Text to standard error. What cannot be written there is lost and stops nothing.
void tell(std::string_view text);

enum class Style { bold, dim, red, green };

/// The text within the codes that switch a style on and off; unchanged unless `colours`.
std::string styled(std::string_view text, Style style, bool colours);

/// One line: label, bar and per cent, `width` columns at most. 0 ≤ done ≤ total, total > 0.
std::string progress_line(std::string_view label, int64_t done, int64_t total, int width);

/// A progress bar on standard error where that is a terminal; otherwise nothing. Redraws at most ten times a
/// second and clears its line when destroyed. One thread.
class Progress {
 public:
  Progress(const Console& console, std::string label, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done);

 private:
  std::string label_;
  int64_t total_;
  bool shown_;  // whether there is anybody to look
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace tercet
