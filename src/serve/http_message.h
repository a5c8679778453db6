// The text of HTTP's heads.
#pragma once

#include <string>
#include <string_view>

#include "serve/http.h"

namespace tercet {

/// How a response's body is told from what follows it.
enum class Framing { length, chunked, until_close };

struct ResponseHead {
  int status = 200;
  std::string_view reason;
  std::string_view type;
  Framing framing = Framing::length;
  size_t length = 0;
  bool keep_alive = true;
  std::string_view request_id;
};

/// The status line and all header lines, with the empty line that ends them.
std::string head_text(const ResponseHead& head, const HttpHeaders& headers, const HttpHeaders& more);

/// One chunk of a chunked body. `text` is not empty.
std::string chunk_text(std::string_view text);

/// A request's id as its client gives it, if it is a short word of letters, digits and "._:-"; else a new
/// one.
std::string request_id(std::string_view given);

}  // namespace tercet
