#include "serve/router.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "base/check.h"
#include "serve/endpoints.h"
#include "serve/page.h"

namespace tercet {
namespace {

struct Route {
  std::string_view method;
  std::string_view path;  // one that ends in '/' stands for all that begin so
  Endpoint* endpoint;     // null: the router's own
};

constexpr std::array kRoutes{
    Route{"GET", "/health", nullptr},
    Route{"GET", "/ready", nullptr},
    Route{"GET", "/metrics", nullptr},
    Route{"GET", "/", nullptr},
    Route{"POST", "/v1/chat/completions", answer_chat_completions},
    Route{"POST", "/v1/completions", answer_completions},
    Route{"POST", "/v1/responses", answer_responses},
    Route{"POST", "/v1/messages", answer_messages},
    Route{"POST", "/v1/messages/count_tokens", answer_count_tokens},
    Route{"GET", "/v1/models", answer_models},
    Route{"GET", "/v1/models/", answer_model},
    Route{"GET", "/props", answer_props},
    Route{"POST", "/tokenize", answer_tokenize},
    Route{"GET", "/tokenizer_info", answer_tokenizer_info},
    Route{"POST", "/detokenize", answer_detokenize},
    Route{"POST", "/apply-template", answer_apply_template},
    Route{"POST", "/v1/kl", answer_kl},
};

bool matches(const Route& route, std::string_view path) {
  const bool begins = route.path.size() > 1 && route.path.ends_with('/');
  return begins ? path.starts_with(route.path) && path.size() > route.path.size() : path == route.path;
}

/// The route of a request, or which methods its path has.
const Route* find_route(const HttpRequest& head, std::string& methods) {
  for (const Route& route : kRoutes) {
    if (!matches(route, head.path)) continue;
    if (route.method == head.method) return &route;
    methods += (methods.empty() ? "" : ", ") + std::string(route.method);
  }
  return nullptr;
}

/// Characters that two paths have in common, from one of their slashes on; a last slash does not count.
size_t common_run(std::string_view a, std::string_view b) {
  size_t longest = 0;
  for (size_t i = a.find('/'); i != a.npos; i = a.find('/', i + 1)) {
    for (size_t j = b.find('/'); j != b.npos; j = b.find('/', j + 1)) {
      size_t run = 0;
      while (i + run < a.size() && j + run < b.size() && a[i + run] == b[j + run]) ++run;
      if (run > 0 && a[i + run - 1] == '/') --run;
      longest = std::max(longest, run);
    }
  }
  return longest;
}

/// The endpoint that a path without one resembles most, or null: /completion, /chat/completions,
/// /v1/v1/models …
const Route* nearest_route(std::string_view path) {
  constexpr size_t kLeast = 5;  // "/chat"
  constexpr size_t kMostOfPath = 256;
  constexpr std::string_view kVersion = "/v1";  // which most have in common
  if (path.starts_with(kVersion)) path.remove_prefix(kVersion.size());
  const Route* nearest = nullptr;
  size_t longest = kLeast - 1;
  for (const Route& route : kRoutes) {
    std::string_view name = route.path;
    if (name.starts_with(kVersion)) name.remove_prefix(kVersion.size());
    const size_t run = common_run(path.substr(0, kMostOfPath), name);
    const bool shorter = run == longest && nearest != nullptr && route.path.size() < nearest->path.size();
    if (run > longest || shorter) nearest = &route;
    longest = std::max(longest, run);
  }
  return nearest;
}

ApiError no_such_endpoint(const HttpRequest& head) {
  std::string message = fmt::format("{} {}: there is no such endpoint", head.method, head.path);
  if (const Route* nearest = nearest_route(head.path)) {
    message += fmt::format("; the nearest is {} {}", nearest->method, nearest->path);
  }
  return {.status = 404, .message = std::move(message), .code = "not_found"};
}

/// As the clients of that path read it.
HttpResponse error_response(const HttpRequest& head, const ApiError& error) {
  const bool anthropic = head.path.starts_with("/v1/messages");
  return anthropic ? anthropic_error_response(error) : openai_error_response(error);
}

std::string now() {
  std::timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  std::tm parts{};
  gmtime_r(&time.tv_sec, &parts);
  char text[32];
  const size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text, size), time.tv_nsec / 1000000);
}

HttpResponse state(int status, std::string_view word) {
  HttpResponse response{.status = status, .body = fmt::format("{{\"status\": \"{}\"}}", word)};
  if (status == 503) response.headers.emplace_back("Retry-After", "5");
  return response;
}

}  // namespace

Router::Router(RouterOptions options) : options_(std::move(options)), guard_(options_.guard) {}

std::optional<HttpResponse> Router::refuse(const HttpRequest& head) {
  if (auto error = guard_.check_origin(head)) return error_response(head, *error);
  if (head.method == "OPTIONS") return HttpResponse{.status = 204, .body = "", .type = ""};
  std::string methods;
  const Route* route = find_route(head, methods);
  if (route != nullptr && route->path == "/health") return std::nullopt;
  if (auto error = guard_.check_key(head)) {
    HttpResponse response = error_response(head, *error);
    // Has a browser ask for the key: as a password, for any user.
    response.headers.emplace_back("WWW-Authenticate", head.path == "/" ? "Basic realm=\"tercet\"" : "Bearer");
    return response;
  }
  if (route == nullptr && methods.empty()) return error_response(head, no_such_endpoint(head));
  if (route == nullptr) {
    HttpResponse response = error_response(
        head, {.status = 405,
               .message = fmt::format("{} {}: expected the method {}", head.method, head.path, methods),
               .code = "method_not_allowed"});
    response.headers.emplace_back("Allow", methods);
    return response;
  }
  if (service_ == nullptr && route->endpoint != nullptr) {
    return error_response(
        head, {.status = 503, .message = "the model is being loaded", .code = "loading", .retry_after = 5});
  }
  return std::nullopt;
}

HttpHeaders Router::headers(const HttpRequest& head) { return guard_.cors_headers(head); }

void Router::answer(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  std::string methods;
  const Route* route = find_route(request, methods);
  TERCET_CHECK(route != nullptr);
  if (route->endpoint != nullptr) {
    if (options_.log_bodies) exchange->note("body", to_json_text(request.body));
    const auto answered = route->endpoint(*service_.load(), request, exchange);
    if (!answered) exchange->respond(error_response(request, answered.error()));
    return;
  }
  if (route->path == "/health") return exchange->respond(state(200, "ok"));
  if (route->path == "/ready") return exchange->respond(ready());
  if (route->path == "/metrics") return exchange->respond(metrics());
  exchange->respond(
      {.body = std::string(kPage),
       .type = "text/html; charset=utf-8",
       .headers = {{"Content-Security-Policy",
                    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                    "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"}}});
}

HttpResponse Router::ready() const {
  const Service* service = service_;
  if (service == nullptr) return state(503, "loading");
  if (service->driver.draining()) return state(503, "draining");
  if (service->driver.stalled(service->options.stall)) return state(503, "stalled");
  return state(200, "ready");
}

HttpResponse Router::metrics() const {
  const Service* service = service_;
  HttpCounts counts;
  {
    const std::lock_guard lock(mutex_);
    counts = counts_;
  }
  if (options_.connections) counts.connections = options_.connections();
  const std::string text =
      service == nullptr
          ? metrics_text({}, {}, counts, "")
          : metrics_text(service->driver.stats(), service->driver.metrics(), counts, service->model_name());
  return {.body = text, .type = "text/plain; version=0.0.4; charset=utf-8"};
}

HttpResponse Router::error(const HttpRequest& head, int status, std::string_view message) {
  return error_response(head, {.status = status, .message = std::string(message)});
}

void Router::log(const HttpRequest& head, const HttpOutcome& outcome) {
  {
    const std::lock_guard lock(mutex_);
    ++counts_.by_status[outcome.status];
    if (outcome.left) ++counts_.left;
  }
  if (!options_.log_line) return;
  std::string line =
      fmt::format(R"({{"time": "{}", "id": {}, "client": {}, "method": {}, "path": {}, "status": {}, )"
                  R"("seconds": {:.6f}, "bytes": {}, "left": {})",
                  now(), to_json_text(head.id), to_json_text(head.client), to_json_text(head.method),
                  to_json_text(head.path), outcome.status, outcome.seconds, outcome.bytes, outcome.left);
  for (const auto& [name, json] : outcome.notes) line += fmt::format(", {}: {}", to_json_text(name), json);
  options_.log_line(line + "}");
}

}  // namespace tercet
