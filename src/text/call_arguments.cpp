#include "text/call_arguments.h"

#include <algorithm>

namespace tercet {

std::string CallArguments::begin_value(std::string_view key) {
  held_.clear();
  if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) {
    mode_ = Mode::dropped;
    return {};
  }
  types_ = argument_types(*parameters_, key);
  mode_ = types_.types == kStringType                 ? Mode::string
          : types_.types == (kStringType | kNullType) ? Mode::or_null
                                                      : Mode::whole;
  const std::string opening = fmt::format("{}{}: ", keys_.empty() ? "{" : ", ", to_json_text(key));
  keys_.emplace_back(key);
  return mode_ == Mode::string ? opening + '"' : opening;
}

std::string CallArguments::add(std::string_view text) {
  std::string out;
  if (mode_ == Mode::string) {
    append_escaped(text, out);
  } else if (mode_ != Mode::dropped) {
    held_ += text;
    if (mode_ == Mode::or_null && !std::string_view("null").starts_with(held_)) {
      out = '"';
      append_escaped(held_, out);
      mode_ = Mode::string;
    }
  }
  return out;
}

std::string CallArguments::end_value() {
  switch (mode_) {
    case Mode::string:
      return "\"";
    case Mode::dropped:
      return {};
    case Mode::or_null:
    case Mode::whole:
      break;
  }
  return typed_value();
}

std::string CallArguments::typed_value() const {
  const auto& strings = types_.strings;
  if (std::find(strings.begin(), strings.end(), held_) != strings.end()) return to_json_text(held_);
  const Result<Json> value = parse_json(held_);
  // Where nothing is known of the type, a value in quotes is JSON too.
  const bool fits = value && (types_.types == kAnyType || (types_.types & kStringType) == 0 ||
                              (type_of(*value) & types_.types & ~unsigned{kStringType}) != 0);
  return fits ? to_json_text(*value) : to_json_text(held_);
}

std::string CallArguments::finish() { return keys_.empty() ? "{}" : "}"; }

std::optional<std::string> CallArguments::from_object(std::string_view text) {
  const Result<Json> value = parse_json(text);
  if (!value || !value->is_object()) return std::nullopt;
  return to_json_text(*value);
}

}  // namespace tercet
