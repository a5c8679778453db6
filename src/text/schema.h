// What a tool's JSON schema says about the type of an argument. A reading of schemas, no validation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/json.h"

namespace tercet {

/// JSON types as bits. A number without fraction and exponent is an integer, any other a fraction: the
/// schema's "number" is both.
enum TypeBits : unsigned {
  kStringType = 1,
  kIntegerType = 2,
  kFractionType = 4,
  kBooleanType = 8,
  kNullType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAnyType = 127,
};

struct ValueTypes {
  unsigned types = kAnyType;
  std::vector<std::string> strings;  // those that enum or const name
};

/// What a reference of the form "#/…" (the value of a `$ref`) points at in `root`, or nullptr.
const Json* referred(const Json& root, const Json& reference);

/// The type bit of a value.
unsigned type_of(const Json& value);

/// The types that argument `name` may have under `parameters`, the tool's schema (null: none is known). Reads
/// type, nullable, enum, const, $ref within `parameters`, anyOf, oneOf, allOf, properties and
/// additionalProperties; all types where these say nothing or contradict each other. Visits at most 256
/// subschemas, so that circular references end.
ValueTypes argument_types(const Json& parameters, std::string_view name);

}  // namespace tercet
