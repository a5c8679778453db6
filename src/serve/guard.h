// Who may ask: keys, and the pages of other sites.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_error.h"

namespace tercet {

struct GuardOptions {
  std::vector<std::string> keys;     // empty: none is needed
  std::vector<std::string> origins;  // sites whose pages may ask ("https://example.org"); "*": all
  bool local = false;                // the server listens to this machine alone
};

/// Without options, a browser's pages of other sites are refused: their users did not ask for this. A site
/// may also have its own name lead to this machine, whose pages are then the server's own for a browser. So
/// where the machine's border is all that guards, requests must come to a number or to localhost.
class Guard {
 public:
  explicit Guard(const GuardOptions& options);

  /// The error for a request without a key (Bearer, x-api-key, or Basic with the key as password), or from a
  /// page of another site.
  std::optional<ApiError> check_key(const HttpRequest& head) const;
  std::optional<ApiError> check_origin(const HttpRequest& head) const;

  /// What lets a permitted page of another site read the answer.
  HttpHeaders cors_headers(const HttpRequest& head) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  bool known(const std::string& key) const;
  bool permitted(std::string_view origin) const;
  bool permitted_host(std::string_view host) const;

  std::vector<Digest> keys_;
  std::vector<std::string> origins_;
  bool local_;
};

}  // namespace tercet
