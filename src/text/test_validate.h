// For tests: whether a value is valid under a JSON schema, as far as the schemas of tests go.
#pragma once

#include <algorithm>
#include <regex>
#include <string>

#include "base/check.h"
#include "text/json.h"
#include "text/schema.h"
#include "text/utf8.h"

namespace tercet {

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool valid(const Json& value, const Json& schema) const {
    if (schema.is_boolean()) return schema.get<bool>();
    return std::all_of(schema.items().begin(), schema.items().end(), [&](const auto& keyword) {
      return holds(value, keyword.key(), keyword.value(), schema);
    });
  }

 private:
  static double number(const Json& value) { return std::stod(number_spelling(value)); }

  static bool has_type(const Json& value, const std::string& name) {
    if (name == "integer") return is_number(value) && is_integer(value);
    return type_name(value) == name;
  }

  static size_t length(const std::string& text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  }

  bool holds(const Json& value, const std::string& key, const Json& want, const Json& schema) const {
    const auto is_valid = [&](const Json& branch) { return valid(value, branch); };
    if (key == "$defs" || key == "description" || key == "title" || key == "format") return true;
    if (key == "type") {
      if (want.is_string()) return has_type(value, want);
      return std::any_of(want.begin(), want.end(), [&](const Json& name) { return has_type(value, name); });
    }
    if (key == "const") return value == want;
    if (key == "enum") return std::find(want.begin(), want.end(), value) != want.end();
    if (key == "$ref") return valid(value, *referred(root_, want));
    if (key == "anyOf") return std::any_of(want.begin(), want.end(), is_valid);
    if (key == "oneOf") return std::count_if(want.begin(), want.end(), is_valid) == 1;
    if (key == "allOf") return std::all_of(want.begin(), want.end(), is_valid);
    if (key == "minimum") return !is_number(value) || number(value) >= number(want);
    if (key == "maximum") return !is_number(value) || number(value) <= number(want);
    if (key == "minLength") return !value.is_string() || length(value) >= want.get<size_t>();
    if (key == "maxLength") return !value.is_string() || length(value) <= want.get<size_t>();
    if (key == "pattern") {
      return !value.is_string() ||
             std::regex_search(value.get<std::string>(), std::regex(want.get<std::string>()));
    }
    if (key == "items") {
      return !value.is_array() ||
             std::all_of(value.begin(), value.end(), [&](const Json& item) { return valid(item, want); });
    }
    if (key == "minItems") return !value.is_array() || value.size() >= want.get<size_t>();
    if (key == "maxItems") return !value.is_array() || value.size() <= want.get<size_t>();
    if (key == "required") {
      return !value.is_object() || std::all_of(want.begin(), want.end(), [&](const Json& name) {
        return value.contains(name.get<std::string>());
      });
    }
    if (key == "properties" || key == "additionalProperties") {
      return !value.is_object() || members_hold(value, key, want, schema);
    }
    TERCET_CHECK_EQ(key, "a keyword that this validator knows");
    return false;
  }

  bool members_hold(const Json& value, const std::string& key, const Json& want, const Json& schema) const {
    const Json* declared = find_member(schema, "properties");
    return std::all_of(value.items().begin(), value.items().end(), [&](const auto& member) {
      const Json* own = declared == nullptr ? nullptr : find_member(*declared, member.key());
      if (key == "properties") return own == nullptr || valid(member.value(), *own);
      return own != nullptr || valid(member.value(), want);
    });
  }

  const Json& root_;
};

inline bool is_valid(const Json& value, const Json& schema) { return Validator(schema).valid(value, schema); }

}  // namespace tercet
