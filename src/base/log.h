// The program's log: lines on standard error. Answers go to standard output and never pass through here.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace tercet {

enum class LogLevel { debug, info, warn, error, off };

/// Messages below this level are dropped. Default: warn.
void set_log_level(LogLevel level);
void log_line(LogLevel level, std::string_view message);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tercet
