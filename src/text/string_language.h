// Which strings a JSON schema allows, as a terminal of llguidance's Lark: for values that come unquoted.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "text/json.h"

namespace tercet {

struct StringLanguage {
  enum class Kind { none, any, some };
  Kind kind = Kind::any;
  std::string terminal;  // of `some`: an expression of literals, regular expressions, | and &
};

/// A Lark literal and a Lark regular expression that match what `text` and `regex` (Rust's syntax) say.
std::string lark_literal(std::string_view text);
std::string lark_regex(std::string_view regex);

/// The strings under `schema`, whose references are into `root`. Reads type, const, enum, $ref, anyOf, oneOf,
/// allOf, pattern, minLength and maxLength. What else would restrict a string (format, not, if) is named in
/// an error that begins with `where` if `strict`, and left aside if not. Visits at most 256 subschemas.
Result<StringLanguage> string_language(const Json& schema, const Json& root, bool strict,
                                       const std::string& where);

}  // namespace tercet
