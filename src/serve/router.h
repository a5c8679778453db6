// Which endpoint answers, and what every endpoint has in common: keys, the log, the state of the server.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "serve/guard.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/service.h"

namespace tercet {

struct RouterOptions {
  GuardOptions guard;
  bool log_bodies = false;                           // requests in the log, prompts and all
  std::function<void(const std::string&)> log_line;  // one JSON object a response; empty: no log
  std::function<size_t()> connections;               // how many are open; may be empty
};

/// Until serve() is called, all but /health and /ready answer that the model is being loaded.
class Router final : public HttpHandler {
 public:
  explicit Router(RouterOptions options);

  /// `service` outlives the server.
  void serve(const Service& service) { service_ = &service; }

  std::optional<HttpResponse> refuse(const HttpRequest& head) override;
  HttpHeaders headers(const HttpRequest& head) override;
  void answer(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse error(const HttpRequest& head, int status, std::string_view message) override;
  void log(const HttpRequest& head, const HttpOutcome& outcome) override;

 private:
  HttpResponse ready() const;
  HttpResponse metrics() const;

  const RouterOptions options_;
  const Guard guard_;
  std::atomic<const Service*> service_{nullptr};
  mutable std::mutex mutex_;  // counts_
  HttpCounts counts_;
};

}  // namespace tercet
