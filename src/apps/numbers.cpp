#include "apps/numbers.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>

namespace tercet {
namespace {

int64_t power(int64_t base, size_t exponent) {
  int64_t value = 1;
  for (size_t i = 0; i < exponent; ++i) value *= base;
  return value;
}

/// What a suffix multiplies by.
std::optional<int64_t> multiplier(std::string_view suffix) {
  std::string lower;
  for (const char c : suffix) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.empty() || lower == "b") return 1;
  const size_t prefix = std::string_view("kmgt").find(lower[0]);
  if (prefix == std::string_view::npos) return std::nullopt;
  const std::string_view rest = std::string_view(lower).substr(1);
  if (rest.empty() || rest == "i" || rest == "ib") return power(1024, prefix + 1);
  if (rest == "b") return power(1000, prefix + 1);
  return std::nullopt;
}

}  // namespace

Result<int64_t> parse_whole(std::string_view text) {
  const char* const end = text.data() + text.size();
  const auto rest_from = [&](const char* at) { return std::string_view(at, static_cast<size_t>(end - at)); };

  int64_t whole = 0;
  const auto [after_whole, whole_error] = std::from_chars(text.data(), end, whole);
  if (whole_error == std::errc::result_out_of_range) return fail("'{}' is too large", text);
  if (whole_error == std::errc()) {
    if (const auto factor = multiplier(rest_from(after_whole))) {
      int64_t value = 0;
      if (__builtin_mul_overflow(whole, *factor, &value)) return fail("'{}' is too large", text);
      return value;
    }
  }

  double decimal = 0;
  const auto [after_decimal, decimal_error] =
      std::from_chars(text.data(), end, decimal, std::chars_format::fixed);
  const auto factor = decimal_error == std::errc() ? multiplier(rest_from(after_decimal)) : std::nullopt;
  if (!factor || !std::isfinite(decimal))
    return fail("'{}' is not a whole number (like 4096, 32k or 8GiB)", text);
  const double value = decimal * static_cast<double>(*factor);
  if (value != std::floor(value)) return fail("'{}' is not a whole number", text);
  if (std::fabs(value) > 0x1p53) return fail("'{}' is too large", text);
  return static_cast<int64_t>(value);
}

Result<double> parse_real(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return fail("'{}' is not a number (like 0.7)", text);
  }
  return value;
}

std::string readable(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return fmt::format("{} B", bytes);
}

}  // namespace tercet
