// Reading the members of a JSON request, each with its type and bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"

namespace tercet {

/// Members that are absent or null are "nothing". The first that is wrong makes the error, and whatever is
/// read afterwards counts for nothing. Remembers which members were asked for, so that the others can be
/// named.
class Fields {
 public:
  /// `object` outlives this. `where`: put before names in messages ("stream_options.").
  explicit Fields(const Json& object, std::string where = "");

  /// The member, of any type; nullptr for nothing.
  const Json* any(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  /// Finite.
  std::optional<double> number(std::string_view name);
  /// 5.0 is a whole number, too.
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<std::string> string(std::string_view name);
  /// A string, or a list of strings.
  std::vector<std::string> strings(std::string_view name);
  /// A list of token ids, 0 … INT32_MAX.
  std::vector<int32_t> tokens(std::string_view name);
  const Json* object(std::string_view name);

  /// Says that a member's value will not do.
  void reject(std::string_view name, std::string message);

  const std::optional<ApiError>& error() const { return error_; }
  /// Members that nobody asked for.
  std::vector<std::string> ignored() const;

 private:
  void expected(std::string_view name, std::string_view what, const Json& found);

  const Json& object_;
  const std::string where_;
  std::set<std::string, std::less<>> asked_;
  std::optional<ApiError> error_;
};

/// The double that a number's spelling means.
double number_value(const Json& number);

/// `body` as a JSON object, or the error.
ApiResult<Json> parse_body(std::string_view body);

}  // namespace tercet
