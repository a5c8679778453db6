#include "text/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

namespace tercet {
namespace {

Json spelled_number(const std::string& spelling) {
  return Json::binary(std::vector<uint8_t>(spelling.begin(), spelling.end()));
}

/// Members were appended as they came; what is left is to fold equal keys.
void fold_equal_keys(Json::object_t& object) {
  auto* const members = object.data();  // the map is a vector whose [] takes keys
  std::vector<size_t> order(object.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return members[a].first < members[b].first; });
  std::vector<bool> drop(order.size());
  bool any = false;
  for (size_t i = 1; i < order.size(); ++i) {
    if (members[order[i]].first != members[order[i - 1]].first) continue;
    members[order[i - 1]].second.swap(members[order[i]].second);
    std::swap(order[i - 1], order[i]);
    drop[order[i - 1]] = any = true;
  }
  if (!any) return;
  Json::object_t kept;
  for (size_t i = 0; i < order.size(); ++i) {
    if (!drop[i]) kept.push_back(std::move(members[i]));
  }
  object.swap(kept);
}

class Builder : public nlohmann::json_sax<Json> {
 public:
  Json root;
  std::string error;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t, const string_t& spelling) override {
    return put(spelled_number(spelling));
  }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override {
    fold_equal_keys(open_.back()->get_ref<Json::object_t&>());
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& exception) override {
    error = exception.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
    if (const size_t end = error.find("] "); error.starts_with('[') && end != error.npos)
      error.erase(0, end + 2);
    return false;
  }

 private:
  Json* place(Json value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    auto& members = open_.back()->get_ref<Json::object_t&>();
    members.push_back({std::move(key_), std::move(value)});
    return &members.back().second;
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == static_cast<size_t>(kMaxJsonDepth)) {
      error = fmt::format("nested more than {} deep", kMaxJsonDepth);
      return false;
    }
    open_.push_back(place(std::move(value)));
    return true;
  }

  std::vector<Json*> open_;  // outermost first; a parent gets no member while its child is open
  std::string key_;
};

void append_string(std::string_view text, std::string& out) {
  out += '"';
  append_escaped(text, out);
  out += '"';
}

void append(const Json& value, std::string& out) {
  if (is_number(value)) {
    out += number_spelling(value);
  } else if (value.is_string()) {
    append_string(value.get_ref<const std::string&>(), out);
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ", ";
      append(value[i], out);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.get_ref<const Json::object_t&>()) {
      if (!first) out += ", ";
      first = false;
      append_string(key, out);
      out += ": ";
      append(item, out);
    }
    out += '}';
  } else if (value.is_boolean()) {
    out += value.get<bool>() ? "true" : "false";
  } else {
    out += "null";
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Builder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return fail("{}", builder.error);
  return std::move(builder.root);
}

std::string to_json_text(const Json& value) {
  std::string out;
  append(value, out);
  return out;
}

void append_escaped(std::string_view text, std::string& out) {
  size_t plain = 0;  // where the bytes begin that stay as they are
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    }
  }
  out.append(text, plain);
}

bool is_number(const Json& value) { return value.is_number() || value.is_binary(); }

bool is_integer(const Json& value) {
  return is_number(value) && number_spelling(value).find_first_of(".eE") == std::string::npos;
}

std::string number_spelling(const Json& number) {
  if (number.is_number_unsigned()) return fmt::format_int(number.get<uint64_t>()).str();
  if (number.is_number_integer()) return fmt::format_int(number.get<int64_t>()).str();
  if (!number.is_binary()) return number.dump();
  const auto& bytes = number.get_binary();
  return {bytes.begin(), bytes.end()};
}

std::string_view type_name(const Json& value) { return is_number(value) ? "number" : value.type_name(); }

const Json* find_member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  for (const auto& [name, value] : object.get_ref<const Json::object_t&>()) {
    if (name == key) return &value;
  }
  return nullptr;
}

}  // namespace tercet
