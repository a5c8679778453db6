// Stop strings in a stream of text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tercet {

/// Passes text on until a stop string is complete. The first to be completed counts, the longest of those
/// that end there; the text ends before it. How the text is cut into pieces changes nothing. Held back is
/// only what could be the beginning of a stop string: where text and strings are UTF-8, whole characters.
class StopMatcher {
 public:
  /// No string is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  /// The text that is certain now. `done`: nothing follows, so nothing is held back. Empty after a stop.
  std::string add(std::string_view text, bool done);

  bool stopped() const { return stopped_; }
  /// The string that stopped it; empty until then.
  const std::string& stop() const { return stop_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string stop_;
  bool stopped_ = false;
};

}  // namespace tercet
