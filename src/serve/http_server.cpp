// All of Boost is in this file, since it is slow to compile.
#include "serve/http_server.h"

#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "serve/http_message.h"
#include "text/utf8.h"

namespace tercet {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using Code = boost::system::error_code;
using Strand = asio::strand<asio::io_context::executor_type>;
using Socket = asio::basic_stream_socket<tcp, Strand>;
using TlsStream = asio::ssl::stream<Socket>;
using Milliseconds = std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr Milliseconds kLinger{2000};      // for a client to read the last answer of a connection
constexpr size_t kLingerBytes = 64 << 20;  // of a request that is not wanted, to be thrown away meanwhile
constexpr size_t kReadBytes = 64 << 10;

class ConnectionBase {
 public:
  virtual ~ConnectionBase() = default;
  virtual void close_after_answer() = 0;  // any thread
  virtual void drop() = 0;                // when no thread runs any more
};

/// What the connections of a server share.
struct Shared {
  HttpOptions options;
  HttpHandler& handler;
  std::atomic<bool> draining{false};
  std::atomic<size_t> unsent{0};  // bytes of all connections

  std::mutex mutex;
  std::map<ConnectionBase*, std::weak_ptr<ConnectionBase>> connections;

  std::vector<std::shared_ptr<ConnectionBase>> all() {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<ConnectionBase>> out;
    for (const auto& [pointer, connection] : connections) {
      if (auto shared = connection.lock()) out.push_back(std::move(shared));
    }
    return out;
  }
  size_t count() {
    const std::lock_guard lock(mutex);
    return connections.size();
  }
};

/// As UTF-8, so that it may be told in JSON.
std::string clean(beast::string_view bytes) {
  std::string text;
  Utf8Decoder decoder;
  decoder.add({bytes.data(), bytes.size()}, text);
  decoder.finish(text);
  return text;
}

Socket& socket_of(Socket& socket) { return socket; }
Socket& socket_of(TlsStream& stream) { return stream.next_layer(); }

/// One connection, one request after another. Everything runs on its strand. A read is always pending: it
/// brings the next request, or tells that the client has left.
template <class Stream>
class Connection final : public ConnectionBase, public std::enable_shared_from_this<Connection<Stream>> {
 public:
  Connection(Stream stream, Shared& shared)
      : stream_(std::move(stream)),
        shared_(shared),
        buffer_(2 * kReadBytes + shared.options.max_header_bytes),
        read_timer_(stream_.get_executor()),
        write_timer_(stream_.get_executor()) {}

  ~Connection() override {
    shared_.unsent -= unsent_;
    const std::lock_guard lock(shared_.mutex);
    shared_.connections.erase(this);
  }

  void start() {
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.connections[this] = this->shared_from_this();
    }
    Code ignored;
    socket_of(stream_).set_option(tcp::no_delay(true), ignored);
    const auto remote = socket_of(stream_).remote_endpoint(ignored);
    client_ = ignored ? "" : remote.address().to_string();
    asio::post(stream_.get_executor(), [self = this->shared_from_this()] { self->handshake(); });
  }

  void close_after_answer() override {
    asio::post(stream_.get_executor(), [self = this->shared_from_this()] {
      self->keep_alive_ = false;
      if (self->phase_ == Phase::idle) self->close();
    });
  }

  void drop() override {
    on_leave_ = nullptr;
    close();
  }

  // For the exchange. `serial` tells whether it is still the one in progress.
  Strand executor() { return stream_.get_executor(); }
  bool current(uint64_t serial) const { return serial == serial_ && phase_ == Phase::answering && !closed_; }
  void set_leave(std::function<void()> call) { on_leave_ = std::move(call); }
  void add_note(std::string name, std::string json) {
    outcome_.notes.emplace_back(std::move(name), std::move(json));
  }

  void respond(HttpResponse response) {
    outcome_.status = response.status;
    outcome_.bytes = head_only_ ? 0 : response.body.size();
    std::string text =
        head(response.status, response.type, Framing::length, response.body.size(), response.headers);
    if (!head_only_) text += response.body;
    send(std::move(text));
    finish();
  }

  void begin_stream(std::function<std::string()> keep_alive) {
    outcome_.status = 200;
    idle_text_ = std::move(keep_alive);
    framing_ = version_ >= 11 ? Framing::chunked : Framing::until_close;
    if (framing_ == Framing::until_close) keep_alive_ = false;
    streaming_ = true;
    send(head(200, "text/event-stream; charset=utf-8", framing_, 0,
              {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}));
  }

  void write(std::string text) {
    if (text.empty()) return;
    outcome_.bytes += text.size();
    send(framing_ == Framing::chunked ? chunk_text(text) : std::move(text));
  }

  void end_stream() {
    if (framing_ == Framing::chunked) send("0\r\n\r\n");
    finish();
  }

 private:
  enum class Phase { idle, reading, answering, flushing, lingering };

  class Handle;

  void handshake() {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      arm_read(shared_.options.read_timeout);
      stream_.async_handshake(asio::ssl::stream_base::server, [self = this->shared_from_this()](Code code) {
        if (code) return self->close();
        self->arm_read(self->shared_.options.idle_timeout);
        self->watch();
      });
    } else {
      arm_read(shared_.options.idle_timeout);
      watch();
    }
  }

  /// The pending read.
  void watch() {
    if (watching_ || closed_) return;
    // While an answer is made, what is there of the next request waits, up to this; the rest stays in the
    // socket, and whether the client has left is not seen until then.
    if (phase_ != Phase::lingering && buffer_.size() >= kReadBytes) return;
    watching_ = true;
    stream_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = this->shared_from_this()](Code code, size_t bytes) {
                              self->watching_ = false;
                              self->watched(code, bytes);
                            });
  }

  void watched(Code code, size_t bytes) {
    if (closed_) return;
    if (code == asio::error::eof && phase_ == Phase::flushing) {
      keep_alive_ = false;  // it asks for nothing more, but may still read
      return;
    }
    if (code && code != asio::error::operation_aborted) return left();
    buffer_.commit(bytes);
    if (phase_ == Phase::lingering) {
      thrown_away_ += bytes;
      buffer_.consume(buffer_.size());
      if (thrown_away_ > kLingerBytes) return close();
      return watch();
    }
    if (phase_ == Phase::idle) return read_head();
    watch();
  }

  void read_head() {
    skip_empty_lines();
    if (buffer_.size() == 0) return watch();
    phase_ = Phase::reading;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // have_head() looks at it
    late_ = false;
    arm_read(shared_.options.read_timeout);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = this->shared_from_this()](Code code, size_t) { self->have_head(code); });
  }

  /// Some clients end a body with one, which nothing counts.
  void skip_empty_lines() {
    const auto* bytes = static_cast<const char*>(buffer_.cdata().data());
    size_t empty = 0;
    while (empty < buffer_.size() && (bytes[empty] == '\r' || bytes[empty] == '\n')) ++empty;
    buffer_.consume(empty);
  }

  void have_head(Code code) {
    if (closed_) return;
    began_ = SteadyClock::now();
    outcome_ = {};
    request_ = {};
    const auto& message = parser_->get();
    version_ = message.version();
    request_.client = client_;
    request_.encrypted = std::is_same_v<Stream, TlsStream>;
    if (code) {
      request_.id = request_id({});
      if (late_ && code == asio::error::operation_aborted) return refuse_late();
      if (code == http::error::header_limit) return refuse_long_header();
      if (code == http::error::end_of_stream ||
          code.category() != http::make_error_code(http::error::bad_method).category()) {
        return close();
      }
      return refuse_broken(400, fmt::format("this is no HTTP request: {}", code.message()));
    }
    read_fields(message);
    // Who stands between might have read the other one (RFC 9112, 3.2).
    if (message.count(http::field::host) > 1)
      return refuse_broken(400, "the request names more than one host");
    const uint64_t length = parser_->content_length().value_or(0);
    body_unread_ = length > 0 || parser_->chunked();
    keep_alive_ = message.keep_alive() && !shared_.draining;
    if (auto refusal = shared_.handler.refuse(request_)) return refuse(std::move(*refusal));
    if (const auto coding = request_.header("content-encoding"); !coding.empty() && coding != "identity") {
      return refuse(shared_.handler.error(
          request_, 415,
          fmt::format("bodies are read as they are, not with the content-encoding {}", coding)));
    }
    if (length > shared_.options.max_body_bytes) return refuse(too_long());
    parser_->body_limit(shared_.options.max_body_bytes);
    if (version_ >= 11 && beast::iequals(std::string(request_.header("expect")), "100-continue"))
      send("HTTP/1.1 100 Continue\r\n\r\n");
    http::async_read(stream_, buffer_, *parser_, [self = this->shared_from_this()](Code body_code, size_t) {
      self->have_body(body_code);
    });
  }

  void read_fields(const http::request<http::string_body>& message) {
    const std::string target = clean(message.target());
    request_.method = std::string(message.method_string());
    head_only_ = request_.method == "HEAD";
    if (head_only_) request_.method = "GET";
    request_.path = target.substr(0, target.find('?'));
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      request_.headers.emplace_back(std::move(name), clean(field.value()));
    }
    request_.id = request_id(request_.header("x-request-id"));
  }

  void have_body(Code code) {
    if (closed_) return;
    if (code == http::error::body_limit) return refuse(too_long());
    if (code == http::error::buffer_overflow) return refuse_long_header();  // of a chunk, or after the last
    if (code == http::error::end_of_stream || code == http::error::partial_message) return close();
    if (late_ && code == asio::error::operation_aborted) return refuse_late();
    if (code.category() == http::make_error_code(http::error::bad_method).category()) {
      return refuse_broken(400, fmt::format("this is no HTTP request: {}", code.message()));
    }
    if (code) return close();
    body_unread_ = false;
    HttpRequest request = request_;
    request.body = std::move(parser_->get().body());
    begin_answer();
    watch();
    shared_.handler.answer(std::move(request), std::make_shared<Handle>(this->shared_from_this(), serial_));
  }

  HttpResponse too_long() {
    return shared_.handler.error(
        request_, 413,
        fmt::format("the request's body is longer than {} bytes", shared_.options.max_body_bytes));
  }

  void begin_answer() {
    phase_ = Phase::answering;
    ++serial_;
    streaming_ = false;
    read_timer_.cancel();
  }

  void refuse_broken(int status, std::string_view message) {
    body_unread_ = true;
    head_only_ = false;
    version_ = 11;
    refuse(shared_.handler.error(request_, status, message));
  }

  void refuse_long_header() { refuse_broken(431, "the request's header is too long"); }

  void refuse_late() {
    refuse_broken(408, fmt::format("the request took longer than {} s to arrive",
                                   std::chrono::duration<double>(shared_.options.read_timeout).count()));
  }

  void refuse(HttpResponse response) {
    if (body_unread_) keep_alive_ = false;
    begin_answer();
    respond(std::move(response));
    watch();
  }

  std::string head(int status, std::string_view type, Framing framing, size_t length,
                   const HttpHeaders& headers) {
    const auto reason = http::obsolete_reason(static_cast<http::status>(status));
    if (shared_.draining) keep_alive_ = false;
    return head_text({.status = status,
                      .reason = {reason.data(), reason.size()},
                      .type = type,
                      .framing = framing,
                      .length = length,
                      .keep_alive = keep_alive_,
                      .request_id = request_.id},
                     headers, shared_.handler.headers(request_));
  }

  void send(std::string bytes) {
    if (closed_) return;
    // One answer may be as long as it is, if it is all that waits.
    if (unsent_ > 0 && unsent_ + bytes.size() > most_unsent()) return left();
    unsent_ += bytes.size();
    shared_.unsent += bytes.size();
    out_.push_back(std::move(bytes));
    if (!writing_) write_next();
  }

  /// As much as nobody holds, so that whoever reads is not dropped for those who do not.
  size_t most_unsent() const {
    constexpr size_t kAlways = 1 << 20;
    const HttpOptions& options = shared_.options;
    const size_t others = shared_.unsent - unsent_;
    const size_t free = options.max_unsent_total > others ? options.max_unsent_total - others : 0;
    return std::min(options.max_unsent_bytes, std::max(kAlways, free / 2));
  }

  void write_next() {
    writing_ = true;
    in_flight_ = std::exchange(out_, {});
    std::vector<asio::const_buffer> buffers;
    for (const std::string& bytes : in_flight_) buffers.emplace_back(bytes.data(), bytes.size());
    arm_write(shared_.options.write_timeout);
    asio::async_write(stream_, buffers, [self = this->shared_from_this()](Code code, size_t bytes) {
      self->written(code, bytes);
    });
  }

  void written(Code code, size_t bytes) {
    writing_ = false;
    if (closed_) return;
    if (code) return left();
    unsent_ -= bytes;
    shared_.unsent -= bytes;
    if (!out_.empty()) return write_next();
    if (phase_ == Phase::flushing) return next_request();
    if (phase_ == Phase::answering && streaming_) {
      arm_write(shared_.options.keep_alive);
    } else {
      disarm_write();
    }
  }

  void finish() {
    if (closed_) return;
    phase_ = Phase::flushing;
    on_leave_ = nullptr;
    idle_text_ = nullptr;
    if (!writing_ && out_.empty()) next_request();
  }

  void next_request() {
    disarm_write();
    log();
    parser_.reset();
    if (!keep_alive_ || shared_.draining) return linger();
    phase_ = Phase::idle;
    arm_read(shared_.options.idle_timeout);
    if (buffer_.size() == 0) return watch();
    if (!watching_) return read_head();
    Code ignored;
    socket_of(stream_).cancel(ignored);  // watched() goes on with what is there
  }

  /// Closing at once would make the system drop what the client has not read yet.
  void linger() {
    phase_ = Phase::lingering;
    Code ignored;
    socket_of(stream_).shutdown(tcp::socket::shutdown_send, ignored);
    arm_read(kLinger);
    buffer_.consume(buffer_.size());
    watch();
  }

  void left() {
    if (closed_) return;
    if (phase_ == Phase::answering || phase_ == Phase::flushing) {
      outcome_.left = true;
      log();
    }
    auto call = std::exchange(on_leave_, nullptr);
    close();
    if (call)
      asio::post(stream_.get_executor(), std::move(call));  // its owner may be in the midst of a write
  }

  void log() {
    outcome_.seconds = std::chrono::duration<double>(SteadyClock::now() - began_).count();
    shared_.handler.log(request_, outcome_);
  }

  void close() {
    closed_ = true;
    read_timer_.cancel();
    write_timer_.cancel();
    Code ignored;
    socket_of(stream_).close(ignored);
  }

  void arm_read(Milliseconds limit) {
    read_timer_.expires_after(limit);
    read_timer_.async_wait([weak = this->weak_from_this()](Code code) {
      if (code) return;
      if (const auto self = weak.lock()) self->read_expired();
    });
  }

  void read_expired() {
    // An expiry that was on its way when the timer was set anew means nothing.
    if (closed_ || read_timer_.expiry() > SteadyClock::now()) return;
    if (phase_ == Phase::answering || phase_ == Phase::flushing) return;
    if (phase_ != Phase::reading) return close();
    late_ = true;
    Code ignored;
    socket_of(stream_).cancel(ignored);
    arm_read(kLinger);  // between two pieces of a request there was nothing to cancel
  }

  /// Twice for every token: so the timer is left as it is where it ends soon enough, and set anew when it has
  /// ended too early.
  void arm_write(Milliseconds limit) {
    write_limit_ = SteadyClock::now() + limit;
    if (!write_timed_ || write_timer_.expiry() > write_limit_) time_write();
  }

  void time_write() {
    write_timed_ = true;
    write_timer_.expires_at(write_limit_);
    write_timer_.async_wait([weak = this->weak_from_this()](Code code) {
      if (code) return;
      if (const auto self = weak.lock()) self->write_expired();
    });
  }

  void disarm_write() { write_limit_ = SteadyClock::time_point::max(); }

  void write_expired() {
    write_timed_ = false;
    if (closed_ || write_limit_ == SteadyClock::time_point::max()) return;
    if (write_limit_ > SteadyClock::now()) return time_write();
    if (writing_) return left();
    if (phase_ == Phase::answering && streaming_) write(idle_text_ ? idle_text_() : ": keep-alive\n\n");
  }

  Stream stream_;
  Shared& shared_;
  beast::flat_buffer buffer_;
  asio::steady_timer read_timer_, write_timer_;
  SteadyClock::time_point write_limit_ = SteadyClock::time_point::max();  // max: none
  bool write_timed_ = false;                                              // write_timer_ runs
  std::string client_;
  std::optional<http::request_parser<http::string_body>> parser_;

  Phase phase_ = Phase::idle;
  bool watching_ = false, writing_ = false, closed_ = false, late_ = false;
  size_t thrown_away_ = 0;

  // The request in progress.
  uint64_t serial_ = 0;
  HttpRequest request_;  // without its body
  unsigned version_ = 11;
  bool keep_alive_ = true, head_only_ = false, body_unread_ = false, streaming_ = false;
  Framing framing_ = Framing::length;
  SteadyClock::time_point began_;
  HttpOutcome outcome_;
  std::function<void()> on_leave_;
  std::function<std::string()> idle_text_;  // of a stream

  std::vector<std::string> out_, in_flight_;
  size_t unsent_ = 0;
};

template <class Stream>
class Connection<Stream>::Handle final : public Exchange {
 public:
  Handle(std::shared_ptr<Connection> connection, uint64_t serial)
      : connection_(std::move(connection)), serial_(serial) {}

  void post(std::function<void()> task) override { asio::post(connection_->executor(), std::move(task)); }
  void on_leave(std::function<void()> call) override {
    if (current()) return connection_->set_leave(std::move(call));
    post(std::move(call));  // it has left already
  }
  void respond(HttpResponse response) override {
    if (current()) connection_->respond(std::move(response));
  }
  void begin_stream(std::function<std::string()> keep_alive) override {
    if (current()) connection_->begin_stream(std::move(keep_alive));
  }
  void write(std::string text) override {
    if (current()) connection_->write(std::move(text));
  }
  void end() override {
    if (current()) connection_->end_stream();
  }
  void note(std::string name, std::string json) override {
    if (current()) connection_->add_note(std::move(name), std::move(json));
  }

 private:
  bool current() const { return connection_->current(serial_); }

  const std::shared_ptr<Connection> connection_;
  const uint64_t serial_;
};

class Server final : public HttpServer {
 public:
  Server(const HttpOptions& options, HttpHandler& handler)
      : shared_{options, handler, {}, {}, {}, {}},
        acceptor_(asio::make_strand(context_)),
        pause_(acceptor_.get_executor()) {}

  Result<void> listen() {
    const HttpOptions& options = shared_.options;
    TERCET_TRY_VOID(read_certificate());
    Code code;
    const auto address = asio::ip::make_address(options.address, code);
    if (code)
      return fail("--host {}: expected the number of an interface, like 127.0.0.1 or ::", options.address);
    const tcp::endpoint endpoint(address, options.port);
    acceptor_.open(endpoint.protocol(), code);
    if (!code) acceptor_.set_option(asio::socket_base::reuse_address(true), code);
    if (!code) acceptor_.bind(endpoint, code);
    if (!code) acceptor_.listen(asio::socket_base::max_listen_connections, code);
    if (code) return fail("cannot listen on {} port {}: {}", options.address, options.port, code.message());
    port_ = acceptor_.local_endpoint(code).port();
    accept();
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { context_.run(); });
    return {};
  }

  ~Server() override {
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
    for (const auto& connection : shared_.all()) connection->drop();
  }

  uint16_t port() const override { return port_; }
  size_t connections() const override { return shared_.count(); }

  void drain() override {
    shared_.draining = true;
    asio::post(acceptor_.get_executor(), [this] {
      Code ignored;
      acceptor_.close(ignored);
    });
    for (const auto& connection : shared_.all()) connection->close_after_answer();
  }

 private:
  Result<void> read_certificate() {
    const HttpOptions& options = shared_.options;
    if (options.certificate.empty()) return {};
    tls_.emplace(asio::ssl::context::tls_server);
    Code code;
    tls_->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                          asio::ssl::context::no_tlsv1_1,
                      code);
    tls_->use_certificate_chain_file(options.certificate, code);
    if (code) return fail("{}: no certificate in PEM form: {}", options.certificate, code.message());
    tls_->use_private_key_file(options.key, asio::ssl::context::pem, code);
    if (code)
      return fail("{}: no private key in PEM form for {}: {}", options.key, options.certificate,
                  code.message());
    return {};
  }

  void accept() {
    acceptor_.async_accept(asio::make_strand(context_), [this](Code code, Socket socket) {
      if (!acceptor_.is_open()) return;
      if (code) return accept_later();
      take(std::move(socket));
      accept();
    });
  }

  /// No file descriptors are left, most likely.
  void accept_later() {
    pause_.expires_after(Milliseconds(100));
    pause_.async_wait([this](Code code) {
      if (!code && acceptor_.is_open()) accept();
    });
  }

  void take(Socket socket) {
    if (shared_.count() >= shared_.options.max_connections) return turn_away(std::move(socket));
    if (tls_) {
      std::make_shared<Connection<TlsStream>>(TlsStream(std::move(socket), *tls_), shared_)->start();
    } else {
      std::make_shared<Connection<Socket>>(std::move(socket), shared_)->start();
    }
  }

  /// Says so, as far as the system takes it at once.
  void turn_away(Socket socket) {
    if (tls_) return;
    const HttpResponse response = shared_.handler.error(
        {}, 503, fmt::format("{} connections are open, and no more may be", shared_.options.max_connections));
    const std::string text = head_text({.status = response.status,
                                        .reason = "Service Unavailable",
                                        .type = response.type,
                                        .length = response.body.size(),
                                        .keep_alive = false,
                                        .request_id = request_id({})},
                                       response.headers, {{"Retry-After", "1"}}) +
                             response.body;
    Code ignored;
    socket.non_blocking(true, ignored);
    socket.send(asio::buffer(text), 0, ignored);
  }

  mutable Shared shared_;
  std::optional<asio::ssl::context> tls_;
  asio::io_context context_;
  asio::basic_socket_acceptor<tcp, Strand> acceptor_;
  asio::steady_timer pause_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

bool is_loopback(const std::string& address) {
  Code code;
  const auto parsed = asio::ip::make_address(address, code);
  return !code && parsed.is_loopback();
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, HttpHandler& handler) {
  auto server = std::make_unique<Server>(options, handler);
  TERCET_TRY_VOID(server->listen());
  return server;
}

}  // namespace tercet
