// HTTP/1.1 over TCP, with TLS where a certificate is given: connections, limits, time-outs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "serve/http.h"

namespace tercet {

struct HttpOptions {
  std::string address = "127.0.0.1";  // of an interface, numeric
  uint16_t port = 8000;               // 0: one that is free
  std::string certificate;            // PEM files; empty: no TLS
  std::string key;
  int threads = 2;
  size_t max_connections = 1024;
  size_t max_header_bytes = 32 << 10;
  size_t max_body_bytes = 8 << 20;
  size_t max_unsent_bytes = 64 << 20;              // of a client that does not read; then it is dropped
  size_t max_unsent_total = size_t{1} << 30;       // of all: the less is left, the less each may hold
  std::chrono::milliseconds read_timeout{30000};   // for a request to arrive, once it has begun
  std::chrono::milliseconds write_timeout{60000};  // for the client to take anything of what is sent
  std::chrono::milliseconds idle_timeout{75000};   // between requests
  std::chrono::milliseconds keep_alive{5000};      // between signs of life in a stream where nothing happens
};

/// Whether the address means this machine alone.
bool is_loopback(const std::string& address);

class HttpServer {
 public:
  /// Listens and answers, on threads of its own, until it is destroyed. `handler` outlives it. Errors: an
  /// address that is none or taken, files that are no certificate and key.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, HttpHandler& handler);

  /// Drops all connections.
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;

  /// Takes no more connections and closes each one that it has after the answer in progress.
  virtual void drain() = 0;

  virtual size_t connections() const = 0;
};

}  // namespace tercet
