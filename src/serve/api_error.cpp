#include "serve/api_error.h"

#include <charconv>

namespace tercet {
namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

HttpResponse error_response(const ApiError& error, const Json& body) {
  HttpResponse response{.status = error.status, .body = wire_text(body)};
  if (error.retry_after > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  return response;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

ApiError field_error(std::string message) {
  ApiError error;
  error.param = message.substr(0, message.find_first_of(" :[."));
  error.message = std::move(message);
  return error;
}

ApiError error_from(const Json& request, std::string message) {
  ApiError error = field_error(std::move(message));
  if (find_member(request, error.param) == nullptr) error.param.clear();
  return error;
}

Json openai_error(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", openai_type(error.status)},
            {"param", text_or_null(error.param)},
            {"code", text_or_null(error.code)}}}};
}

Json anthropic_error(const ApiError& error) {
  return {{"type", "error"}, {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}}}};
}

HttpResponse openai_error_response(const ApiError& error) {
  return error_response(error, openai_error(error));
}

HttpResponse anthropic_error_response(const ApiError& error) {
  return error_response(error, anthropic_error(error));
}

void respond_json(Exchange& exchange, const Json& body) { exchange.respond({.body = wire_text(body)}); }

std::string wire_text(const Json& value) { return to_json_text(value); }

Json exact_number(float value) {
  const std::string decimal = fmt::format("{}", value);
  double number = 0;
  std::from_chars(decimal.data(), decimal.data() + decimal.size(), number);
  return number;
}

}  // namespace tercet
