// What a caller is told instead of an answer, in no protocol's spelling yet.
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "serve/http.h"
#include "text/json.h"

namespace tercet {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the field of the request that is wrong; empty where there is none
  std::string code = {};   // a word for programs, as OpenAI has it; may be empty
  int retry_after = 0;     // seconds; 0: not said
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> refuse(ApiError error) { return tl::unexpected(std::move(error)); }

/// An error whose message begins with the field that it is about.
ApiError field_error(std::string message);

/// An error of the layers below. Their messages begin with the field that they are about; where `request` has
/// that field, it is the error's param.
ApiError error_from(const Json& request, std::string message);

/// {"error": {"message", "type", "param", "code"}}
Json openai_error(const ApiError& error);
HttpResponse openai_error_response(const ApiError& error);

/// {"type": "error", "error": {"type", "message"}}
Json anthropic_error(const ApiError& error);
HttpResponse anthropic_error_response(const ApiError& error);

/// JSON as it goes over the wire.
std::string wire_text(const Json& value);
void respond_json(Exchange& exchange, const Json& body);

/// A float as the shortest decimal that reads back as it.
Json exact_number(float value);

}  // namespace tercet
