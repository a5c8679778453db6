#include "serve/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ctime>

#include "serve/ids.h"

namespace tercet {
namespace {

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

}  // namespace

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

std::string head_text(const ResponseHead& head, const HttpHeaders& headers, const HttpHeaders& more) {
  std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\nServer: tercet\r\nDate: {}\r\nX-Request-Id: {}\r\nConnection: {}\r\n", head.status,
      head.reason, date(), head.request_id, head.keep_alive ? "keep-alive" : "close");
  if (!head.type.empty()) text += fmt::format("Content-Type: {}\r\n", head.type);
  if (head.framing == Framing::length) text += fmt::format("Content-Length: {}\r\n", head.length);
  if (head.framing == Framing::chunked) text += "Transfer-Encoding: chunked\r\n";
  for (const HttpHeaders* list : {&headers, &more}) {
    for (const auto& [name, value] : *list) text += fmt::format("{}: {}\r\n", name, value);
  }
  return text + "\r\n";
}

std::string chunk_text(std::string_view text) { return fmt::format("{:x}\r\n{}\r\n", text.size(), text); }

std::string request_id(std::string_view given) {
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._:-").find(c) != std::string_view::npos;
  };
  if (!given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), fits)) {
    return std::string(given);
  }
  return random_id("req-");
}

}  // namespace tercet
