// JSON as chats need it: objects keep the order of their keys and numbers their spelling.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tercet {

/// Integers of 64 bits are numbers. Every other number ("1.50", "1e3", 40 digits) is held as its spelling, in
/// a `binary` value, which no JSON text can make otherwise: ask is_number(), not Json::is_number().
using Json = nlohmann::ordered_json;

/// How deeply arrays and objects may nest.
inline constexpr int kMaxJsonDepth = 128;

/// One JSON value and nothing after it. Of equal keys in an object the last one counts, in the place of the
/// first, as in Python. Fails on anything that is not JSON (RFC 8259), a number beyond the range of a double,
/// or nesting beyond kMaxJsonDepth. Never throws; linear in the text but for sorting keys.
Result<Json> parse_json(std::string_view text);

/// What Python's json.dumps(value, ensure_ascii=False) gives, numbers as they were spelled.
std::string to_json_text(const Json& value);

/// `text` inside a JSON string literal, without the quotes.
void append_escaped(std::string_view text, std::string& out);

bool is_number(const Json& value);
/// Of a number: without fraction and exponent.
bool is_integer(const Json& value);
std::string number_spelling(const Json& number);

/// "null", "boolean", "number", "string", "array" or "object".
std::string_view type_name(const Json& value);

/// The member, or nullptr where there is none or `object` is no object.
const Json* find_member(const Json& object, std::string_view key);

}  // namespace tercet
