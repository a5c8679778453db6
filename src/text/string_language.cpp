#include "text/string_language.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "text/schema.h"

namespace tercet {
namespace {

using Kind = StringLanguage::Kind;

StringLanguage some(std::string terminal) { return {Kind::some, std::move(terminal)}; }

StringLanguage both(const StringLanguage& a, const StringLanguage& b) {
  if (a.kind == Kind::none || b.kind == Kind::any) return a;
  if (b.kind == Kind::none || a.kind == Kind::any) return b;
  return some(fmt::format("({} & {})", a.terminal, b.terminal));
}

StringLanguage either(const StringLanguage& a, const StringLanguage& b) {
  if (a.kind == Kind::any || b.kind == Kind::none) return a;
  if (b.kind == Kind::any || a.kind == Kind::none) return b;
  return some(fmt::format("({} | {})", a.terminal, b.terminal));
}

/// The whole strings in which `pattern` (ECMAScript's syntax) is found; nothing where its anchors are not
/// simply at its ends.
std::optional<std::string> whole_pattern(std::string_view pattern) {
  constexpr std::string_view kAnything = "(?s:.*)";
  bool top_level_choice = false;
  int depth = 0;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
    } else if (c == '(' || c == ')') {
      depth += c == '(' ? 1 : -1;
    } else if (c == '|' && depth == 0) {
      top_level_choice = true;
    } else if ((c == '^' && i != 0) || (c == '$' && i + 1 != pattern.size())) {
      return std::nullopt;
    }
  }
  const bool begins = pattern.starts_with('^');
  size_t slashes = 0;
  while (slashes + 1 < pattern.size() && pattern[pattern.size() - 2 - slashes] == '\\') ++slashes;
  const bool ends = pattern.ends_with('$') && slashes % 2 == 0;
  if (top_level_choice && (begins || ends)) return std::nullopt;
  std::string_view inner = pattern;
  if (begins) inner.remove_prefix(1);
  if (ends && !inner.empty()) inner.remove_suffix(1);
  return fmt::format("{}(?:{}){}", begins ? "" : kAnything, inner, ends ? "" : kAnything);
}

/// Rust's \d and \w are Unicode's, ECMAScript's are ASCII's.
std::string with_ascii_classes(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char c = pattern[++i];
    out += c == 'd'   ? "[0-9]"
           : c == 'D' ? "[^0-9]"
           : c == 'w' ? "[0-9A-Za-z_]"
           : c == 'W' ? "[^0-9A-Za-z_]"
                      : std::string{'\\', c};
  }
  return out;
}

class Reader {
 public:
  Reader(const Json& root, bool strict, const std::string& where)
      : root_(root), strict_(strict), where_(where) {}

  Result<StringLanguage> read(const Json& schema) {
    if (schema == false) return StringLanguage{Kind::none, {}};
    if (!schema.is_object()) return StringLanguage{};
    if (++visits_ > kMostVisits) {
      TERCET_TRY_VOID(aside("more than 256 subschemas (a circular $ref?)"));
      return StringLanguage{};
    }
    if (const Json* type = find_member(schema, "type"); type != nullptr && !names_string(*type)) {
      return StringLanguage{Kind::none, {}};
    }
    StringLanguage language;
    for (const auto& [key, value] : schema.items()) {
      TERCET_TRY(const StringLanguage more, keyword(key, value));
      language = both(language, more);
    }
    TERCET_TRY(const StringLanguage lengths, length_bounds(schema));
    return both(language, lengths);
  }

 private:
  static constexpr int kMostVisits = 256;

  /// An error, or nothing where the caller does not insist.
  Result<void> aside(std::string_view what) const {
    if (strict_) return fail("{}: {} is not supported for a string argument", where_, what);
    return {};
  }

  static bool names_string(const Json& type) {
    if (!type.is_array()) return !type.is_string() || type == "string";
    for (const Json& name : type) {
      if (name == "string") return true;
    }
    return false;
  }

  Result<StringLanguage> keyword(const std::string& key, const Json& value) {
    if (key == "const") return listed(Json::array({value}));
    if (key == "enum" && value.is_array()) return listed(value);
    if (key == "$ref") {
      if (const Json* target = referred(root_, value)) return read(*target);
      TERCET_TRY_VOID(aside(fmt::format("the reference {}", to_json_text(value))));
    } else if ((key == "anyOf" || key == "oneOf") && value.is_array()) {
      StringLanguage any{Kind::none, {}};
      for (const Json& branch : value) {
        TERCET_TRY(const StringLanguage more, read(branch));
        any = either(any, more);
      }
      return any;
    } else if (key == "allOf" && value.is_array()) {
      StringLanguage all;
      for (const Json& branch : value) {
        TERCET_TRY(const StringLanguage more, read(branch));
        all = both(all, more);
      }
      return all;
    } else if (key == "pattern" && value.is_string()) {
      const std::string& pattern = value.get_ref<const std::string&>();
      if (const auto whole = whole_pattern(pattern)) return some(lark_regex(with_ascii_classes(*whole)));
      TERCET_TRY_VOID(aside(fmt::format("the pattern {} (anchors inside it)", to_json_text(value))));
    } else if (key == "format" || key == "not" || key == "if" || key == "contentEncoding") {
      TERCET_TRY_VOID(aside(fmt::format("`{}`", key)));
    }
    return StringLanguage{};
  }

  static StringLanguage listed(const Json& members) {
    std::string any;
    for (const Json& member : members) {
      if (!member.is_string()) continue;
      any += any.empty() ? "(" : " | ";
      any += lark_literal(member.get_ref<const std::string&>());
    }
    return any.empty() ? StringLanguage{Kind::none, {}} : some(any + ")");
  }

  Result<StringLanguage> length_bounds(const Json& schema) const {
    constexpr uint64_t kMost = 100'000;
    std::optional<uint64_t> bounds[2];
    for (const size_t i : {0, 1}) {
      const char* key = i == 0 ? "minLength" : "maxLength";
      const Json* bound = find_member(schema, key);
      if (bound == nullptr) continue;
      if (bound->is_number_unsigned() && *bound <= kMost) {
        bounds[i] = bound->get<uint64_t>();
      } else {
        TERCET_TRY_VOID(aside(fmt::format("{} {}", key, to_json_text(*bound))));
      }
    }
    if (!bounds[0] && !bounds[1]) return StringLanguage{};
    const uint64_t least = bounds[0].value_or(0);
    if (bounds[1] && *bounds[1] < least) return StringLanguage{Kind::none, {}};
    return some(
        fmt::format("/(?s:.{{{},{}}})/", least, bounds[1] ? fmt::format("{}", *bounds[1]) : std::string()));
  }

  const Json& root_;
  bool strict_;
  const std::string& where_;
  int visits_ = 0;
};

}  // namespace

std::string lark_literal(std::string_view text) { return to_json_text(Json(text)); }

std::string lark_regex(std::string_view regex) {
  std::string out = "/";
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size() && regex[i + 1] != '\n') {
      out += c;
      out += regex[++i];
    } else if (c == '/') {
      out += "\\/";
    } else if (c == '\n' || c == '\r') {
      out += c == '\n' ? "\\n" : "\\r";
    } else {
      out += c;
    }
  }
  return out + '/';
}

Result<StringLanguage> string_language(const Json& schema, const Json& root, bool strict,
                                       const std::string& where) {
  return Reader(root, strict, where).read(schema);
}

}  // namespace tercet
