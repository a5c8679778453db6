#include "sampling/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tercet {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) TERCET_CHECK(!stop.empty());
}

std::string StopMatcher::add(std::string_view text, bool done) {
  if (stopped_) return {};
  held_ += text;
  size_t first_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end > first_end || (end == first_end && stop.size() <= stop_.size())) continue;
    first_end = end;
    stop_ = stop;
  }
  stopped_ = first_end != std::string::npos;
  if (stopped_) return held_.substr(0, first_end - stop_.size());

  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  if (done) keep = 0;
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

}  // namespace tercet
