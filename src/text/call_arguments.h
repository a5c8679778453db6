// The arguments of one tool call, from the wire format's pairs to the text of a JSON object, piece by piece.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json.h"
#include "text/schema.h"

namespace tercet {

/// Each function returns what to append to the arguments' text. In the order begin_value, add…, end_value for
/// each pair and finish at last, the pieces together are a JSON object, written as to_json_text() would.
///
/// A value whose schema allows only a string is that text, and streams as it comes. Of the types that its
/// schema allows, any other value is JSON if it parses as one of them (or as anything, where a string is not
/// among them), else the text as a string. A string that an enum names is that string.
class CallArguments {
 public:
  /// `parameters` is the tool's schema and outlives this; null where none is known.
  explicit CallArguments(const Json& parameters) : parameters_(&parameters) {}

  std::string begin_value(std::string_view key);
  /// `text` is whole characters.
  std::string add(std::string_view text);
  std::string end_value();
  std::string finish();
  /// Whether no pair has begun.
  bool empty() const { return keys_.empty(); }

  /// The arguments' text for a call that gives them as one JSON object; nothing if it is none.
  static std::optional<std::string> from_object(std::string_view text);

 private:
  enum class Mode {
    string,   // streams
    or_null,  // waits while it may still be `null`, then streams
    whole,    // waits for the end
    dropped,  // a key that came before: the first value counts, since it may be sent already
  };

  std::string typed_value() const;

  const Json* parameters_;
  std::vector<std::string> keys_;
  ValueTypes types_;
  Mode mode_ = Mode::whole;
  std::string held_;
};

}  // namespace tercet
