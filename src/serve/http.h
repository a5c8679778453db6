// HTTP as those who answer requests see it. How it travels is http_server.h's affair.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tercet {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;     // up to the question mark
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;      // the client's x-request-id, or one of ours
  std::string client;  // its address
  bool encrypted = false;

  /// Empty where there is none.
  std::string_view header(std::string_view lower_case_name) const;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  HttpHeaders headers = {};
};

/// One request that is being answered: by respond(), or by begin_stream(), write()s and end(). Everything
/// but post() is called on the exchange's own sequence of tasks: from HttpHandler::answer() or from what was
/// posted. Once the client has left, nothing that is written goes anywhere.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Any thread. Tasks run one at a time, in the order in which they were posted.
  virtual void post(std::function<void()> task) = 0;

  /// To be called once if the client leaves before the end. Dropped at the end.
  virtual void on_leave(std::function<void()> call) = 0;

  virtual void respond(HttpResponse response) = 0;

  /// An event stream, status 200. While nothing else is written, now and then what `keep_alive` returns is; a
  /// comment where it is empty. It is not called after the end, nor when the client has left.
  virtual void begin_stream(std::function<std::string()> keep_alive) = 0;
  virtual void write(std::string text) = 0;
  virtual void end() = 0;

  /// A member for the access log, as JSON text.
  virtual void note(std::string name, std::string json) = 0;
};

/// How an exchange ended, for the access log.
struct HttpOutcome {
  int status = 0;
  double seconds = 0;
  uint64_t bytes = 0;  // of the response's body
  bool left = false;   // the client did, before the end
  std::vector<std::pair<std::string, std::string>> notes;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  /// Asked before a body is read: an answer that refuses the request, or nothing. Any thread.
  virtual std::optional<HttpResponse> refuse(const HttpRequest& head) = 0;

  /// Headers for every response to this request (CORS).
  virtual HttpHeaders headers(const HttpRequest& head) = 0;

  virtual void answer(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;

  /// The answer to a request in which HTTP itself finds an error, as far as it is known.
  virtual HttpResponse error(const HttpRequest& head, int status, std::string_view message) = 0;

  virtual void log(const HttpRequest& head, const HttpOutcome& outcome) = 0;
};

}  // namespace tercet
