#include "serve/fields.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "text/utf8.h"

namespace tercet {
namespace {

/// Where the number is whole and within int64.
std::optional<int64_t> whole(const Json& value) {
  if (!is_number(value)) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  const double number = number_value(value);
  if (std::floor(number) != number || std::fabs(number) > 0x1p53) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::string shown(const Json& value) {
  constexpr size_t kLongest = 40;
  const std::string text = to_json_text(value);
  return text.size() <= kLongest ? text : std::string(type_name(value));
}

}  // namespace

double number_value(const Json& number) {
  const std::string spelling = number_spelling(number);
  double value = 0;
  std::from_chars(spelling.data(), spelling.data() + spelling.size(), value);
  return value;
}

ApiResult<Json> parse_body(std::string_view body) {
  auto json = parse_json(body);
  if (!json) {
    // The message quotes the body, which may be no UTF-8.
    std::string message = "the body is not valid JSON: ";
    Utf8Decoder decoder;
    decoder.add(json.error().message, message);
    decoder.finish(message);
    return refuse({.message = std::move(message), .code = "invalid_json"});
  }
  if (!json->is_object()) {
    return refuse({.message = fmt::format("the body: expected a JSON object, found {}", type_name(*json))});
  }
  return std::move(*json);
}

Fields::Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

const Json* Fields::any(std::string_view name) {
  asked_.emplace(name);
  const Json* value = find_member(object_, name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void Fields::reject(std::string_view name, std::string message) {
  if (error_) return;
  std::string param = fmt::format("{}{}", where_, name);
  message.insert(0, param + ": ");
  error_ = ApiError{.message = std::move(message), .param = std::move(param)};
}

void Fields::expected(std::string_view name, std::string_view what, const Json& found) {
  reject(name, fmt::format("expected {}, found {}", what, shown(found)));
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  expected(name, "true or false", *value);
  return std::nullopt;
}

std::optional<double> Fields::number(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (is_number(*value)) return number_value(*value);
  expected(name, "a number", *value);
  return std::nullopt;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  const auto number = whole(*value);
  if (number && *number >= low && *number <= high) return number;
  expected(name, fmt::format("a whole number from {} to {}", low, high), *value);
  return std::nullopt;
}

std::optional<std::string> Fields::string(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  expected(name, "a string", *value);
  return std::nullopt;
}

std::vector<std::string> Fields::strings(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> all;
  if (value->is_array()) {
    for (const Json& item : *value) {
      if (item.is_string()) all.push_back(item.get<std::string>());
    }
  }
  if (value->is_array() && all.size() == value->size()) return all;
  expected(name, "a string or a list of strings", *value);
  return {};
}

std::vector<int32_t> Fields::tokens(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr) return {};
  std::vector<int32_t> all;
  if (value->is_array()) {
    for (const Json& item : *value) {
      const auto id = whole(item);
      if (id && *id >= 0 && *id <= std::numeric_limits<int32_t>::max())
        all.push_back(static_cast<int32_t>(*id));
    }
  }
  if (value->is_array() && all.size() == value->size()) return all;
  expected(name, "a list of token ids", *value);
  return {};
}

const Json* Fields::object(std::string_view name) {
  const Json* value = any(name);
  if (value == nullptr || value->is_object()) return value;
  expected(name, "an object", *value);
  return nullptr;
}

std::vector<std::string> Fields::ignored() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.get_ref<const Json::object_t&>()) {
    if (!asked_.contains(name)) names.push_back(where_ + name);
  }
  return names;
}

}  // namespace tercet
