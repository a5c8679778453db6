#include "serve/guard.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>

namespace tercet {
namespace {

std::array<unsigned char, 32> digest_of(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

/// The rest of a header after its scheme, or nothing where it has another.
std::optional<std::string> after_scheme(std::string_view header, std::string_view scheme) {
  if (header.size() <= scheme.size() || header[scheme.size()] != ' ') return std::nullopt;
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  if (!std::equal(scheme.begin(), scheme.end(), header.begin(), [&](char b, char a) { return same(a, b); })) {
    return std::nullopt;
  }
  return std::string(header.substr(scheme.size() + 1));
}

/// The password of "user:password" in base64.
std::string basic_password(const std::string& encoded) {
  std::string text(encoded.size(), '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(encoded.data()),
                                   static_cast<int>(std::min(encoded.size(), size_t{4096})));
  if (size < 0) return {};
  text.resize(static_cast<size_t>(size));
  while (!text.empty() && text.back() == '\0') text.pop_back();  // padding
  const size_t colon = text.find(':');
  return colon == std::string::npos ? std::string() : text.substr(colon + 1);
}

/// Whether a Host header has a name that its owner can have lead anywhere.
bool is_foreign_name(std::string_view host) {
  if (host.empty() || host.front() == '[') return false;
  std::string name(host.substr(0, host.find(':')));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool number = name.find_first_not_of("0123456789.") == name.npos;
  return !number && name != "localhost" && !name.ends_with(".localhost");
}

}  // namespace

Guard::Guard(const GuardOptions& options) : origins_(options.origins), local_(options.local) {
  for (const std::string& key : options.keys) keys_.push_back(digest_of(key));
}

bool Guard::known(const std::string& key) const {
  const Digest digest = digest_of(key);
  bool found = false;
  for (const Digest& one : keys_) found |= CRYPTO_memcmp(digest.data(), one.data(), digest.size()) == 0;
  return found;
}

std::optional<ApiError> Guard::check_key(const HttpRequest& head) const {
  if (keys_.empty()) return std::nullopt;
  const std::string_view header = head.header("authorization");
  std::string key(head.header("x-api-key"));
  if (const auto bearer = after_scheme(header, "bearer")) key = *bearer;
  if (const auto basic = after_scheme(header, "basic")) key = basic_password(*basic);
  if (known(key)) return std::nullopt;
  return ApiError{.status = 401,
                  .message = key.empty() ? "this server needs a key: Authorization: Bearer KEY"
                                         : "the key is none that this server knows",
                  .code = "invalid_api_key"};
}

bool Guard::permitted(std::string_view origin) const {
  return std::any_of(origins_.begin(), origins_.end(),
                     [&](const std::string& one) { return one == "*" || one == origin; });
}

bool Guard::permitted_host(std::string_view host) const {
  return std::any_of(origins_.begin(), origins_.end(), [&](const std::string& one) {
    const size_t scheme = one.find("://");
    return one == "*" || (scheme != one.npos && std::string_view(one).substr(scheme + 3) == host);
  });
}

std::optional<ApiError> Guard::check_origin(const HttpRequest& head) const {
  const std::string_view host = head.header("host");
  if (local_ && keys_.empty() && is_foreign_name(host) && !permitted_host(host)) {
    return ApiError{.status = 403,
                    .message = fmt::format("the host {} is not known as this machine's; --cors http://{} or "
                                           "--api-key permits it",
                                           host, host),
                    .code = "host_not_permitted"};
  }
  const std::string_view origin = head.header("origin");
  if (origin.empty() || permitted(origin)) return std::nullopt;
  const std::string own = fmt::format("{}://{}", head.encrypted ? "https" : "http", host);
  if (origin == own) return std::nullopt;
  return ApiError{.status = 403,
                  .message = fmt::format("pages of {} may not ask this server (--cors permits them)", origin),
                  .code = "origin_not_permitted"};
}

HttpHeaders Guard::cors_headers(const HttpRequest& head) const {
  const std::string origin(head.header("origin"));
  if (origin.empty() || !permitted(origin)) return {};
  HttpHeaders headers{{"Access-Control-Allow-Origin", origin},
                      {"Vary", "Origin"},
                      {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"}};
  if (head.method != "OPTIONS") return headers;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  headers.emplace_back(
      "Access-Control-Allow-Headers",
      "Authorization, Content-Type, X-Api-Key, X-Request-Id, Anthropic-Version, OpenAI-Beta");
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

}  // namespace tercet
