#include "text/schema.h"

#include <algorithm>
#include <charconv>

namespace tercet {
namespace {

unsigned bits_of_name(const Json& name) {
  if (name == "string") return kStringType;
  if (name == "integer") return kIntegerType;
  if (name == "number") return kIntegerType | kFractionType;
  if (name == "boolean") return kBooleanType;
  if (name == "null") return kNullType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return kAnyType;
}

/// A step of a JSON pointer (RFC 6901): "~1" is "/" and "~0" is "~".
std::string unescaped(std::string_view step) {
  std::string out;
  for (size_t i = 0; i < step.size(); ++i) {
    const bool escape = step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1');
    out += !escape ? step[i] : step[++i] == '1' ? '/' : '~';
  }
  return out;
}

const Json* item(const Json& array, const std::string& step) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), index);
  const bool whole = error == std::errc() && end == step.data() + step.size();
  return whole && index < array.size() ? &array[index] : nullptr;
}

class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  /// The schema of a property, or nullptr.
  const Json* property(const Json& schema, std::string_view name) {
    if (!visit()) return nullptr;
    if (const Json* properties = find_member(schema, "properties")) {
      if (const Json* found = find_member(*properties, name)) return found;
    }
    if (const Json* target = target_of(schema)) {
      if (const Json* found = property(*target, name)) return found;
    }
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
      const Json* branches = find_member(schema, keyword);
      if (branches == nullptr || !branches->is_array()) continue;
      for (const Json& branch : *branches) {
        if (const Json* found = property(branch, name)) return found;
      }
    }
    const Json* rest = find_member(schema, "additionalProperties");
    return rest != nullptr && rest->is_object() ? rest : nullptr;
  }

  ValueTypes types(const Json& schema) {
    ValueTypes out;
    if (!schema.is_object() || !visit()) return out;
    if (const Json* target = target_of(schema)) meet(out, types(*target));
    if (const Json* type = find_member(schema, "type"))
      meet(out, named(*type, find_member(schema, "nullable")));
    if (const Json* members = find_member(schema, "enum"); members != nullptr && members->is_array()) {
      meet(out, listed(*members));
    }
    if (const Json* value = find_member(schema, "const")) meet(out, listed(Json::array({*value})));
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const Json* branches = find_member(schema, keyword);
      if (branches == nullptr || !branches->is_array()) continue;
      ValueTypes any{0, {}};
      for (const Json& branch : *branches) join(any, types(branch));
      meet(out, any);
    }
    if (const Json* branches = find_member(schema, "allOf"); branches != nullptr && branches->is_array()) {
      for (const Json& branch : *branches) meet(out, types(branch));
    }
    return out;
  }

 private:
  static constexpr int kMostVisits = 256;

  bool visit() { return ++visits_ <= kMostVisits; }

  const Json* target_of(const Json& schema) const {
    const Json* reference = find_member(schema, "$ref");
    return reference == nullptr ? nullptr : referred(root_, *reference);
  }

  static ValueTypes named(const Json& type, const Json* nullable) {
    ValueTypes out{0, {}};
    if (type.is_array()) {
      for (const Json& name : type) out.types |= bits_of_name(name);
    } else {
      out.types = bits_of_name(type);
    }
    if (nullable != nullptr && *nullable == true) out.types |= kNullType;
    return out;
  }

  static ValueTypes listed(const Json& members) {
    ValueTypes out{0, {}};
    for (const Json& member : members) {
      out.types |= type_of(member);
      if (member.is_string()) out.strings.push_back(member.get<std::string>());
    }
    return out;
  }

  static void join(ValueTypes& a, const ValueTypes& b) {
    a.types |= b.types;
    a.strings.insert(a.strings.end(), b.strings.begin(), b.strings.end());
  }

  /// Both hold; a contradiction says nothing.
  static void meet(ValueTypes& a, const ValueTypes& b) {
    a.types = (a.types & b.types) != 0 ? a.types & b.types : unsigned{kAnyType};
    a.strings.insert(a.strings.end(), b.strings.begin(), b.strings.end());
  }

  const Json& root_;
  int visits_ = 0;
};

}  // namespace

const Json* referred(const Json& root, const Json& reference) {
  if (!reference.is_string()) return nullptr;
  std::string_view path = reference.get_ref<const std::string&>();
  if (!path.starts_with('#')) return nullptr;
  path.remove_prefix(1);
  const Json* at = &root;
  while (at != nullptr && !path.empty()) {
    if (path[0] != '/') return nullptr;
    path.remove_prefix(1);
    const size_t end = std::min(path.find('/'), path.size());
    const std::string step = unescaped(path.substr(0, end));
    at = at->is_array() ? item(*at, step) : find_member(*at, step);
    path.remove_prefix(end);
  }
  return at;
}

unsigned type_of(const Json& value) {
  if (is_number(value)) return is_integer(value) ? kIntegerType : kFractionType;
  if (value.is_string()) return kStringType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_array()) return kArrayType;
  if (value.is_object()) return kObjectType;
  return kNullType;
}

ValueTypes argument_types(const Json& parameters, std::string_view name) {
  Reader reader(parameters);
  const Json* schema = reader.property(parameters, name);
  return schema == nullptr ? ValueTypes() : Reader(parameters).types(*schema);
}

}  // namespace tercet
