// What the server makes of bytes on a socket, and of clients that are slow, greedy or gone.
#include "serve/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>

namespace tercet {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

/// Answers /echo with the body and /big with as many bytes as the body says; keeps /hold until its client
/// leaves, and writes to /flood until then.
class TestHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> refuse(const HttpRequest&) override { return std::nullopt; }
  HttpHeaders headers(const HttpRequest&) override { return {}; }
  HttpResponse error(const HttpRequest&, int status, std::string_view message) override {
    return {.status = status, .body = std::string(message), .type = "text/plain"};
  }
  void answer(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    if (request.path == "/echo") return exchange->respond({.body = request.body});
    if (request.path == "/big")
      return exchange->respond({.body = std::string(std::stoul(request.body), 'x')});
    exchange->on_leave([this, exchange] {
      const std::lock_guard lock(mutex_);
      ++left_;
      changed_.notify_all();
    });
    if (request.path != "/flood") return;
    exchange->begin_stream({});
    for (int i = 0; i < 64; ++i) exchange->write(std::string(1 << 20, 'x'));
  }
  void log(const HttpRequest&, const HttpOutcome&) override {}

  /// Whether so many clients have left before their answer's end, or do soon.
  bool have_left(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return left_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_ = 0;
};

class Client {
 public:
  explicit Client(const HttpServer& server) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// As much of the bytes as the server takes.
  size_t send(std::string_view bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t more = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (more <= 0) break;
      sent += static_cast<size_t>(more);
    }
    return sent;
  }
  void post(std::string_view path, std::string_view body, std::string_view after = "") {
    send("POST " + std::string(path) + " HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body) + std::string(after));
  }
  /// What comes until the server closes the connection.
  std::string read() { return read_until(std::string(1, '\0')); }
  /// What comes until `end` has.
  std::string read_until(const std::string& end) {
    std::string all;
    char buffer[65536];
    while (all.find(end, all.size() - std::min(all.size(), end.size() + sizeof(buffer))) == all.npos) {
      const ssize_t got = recv(socket_, buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      all.append(buffer, static_cast<size_t>(got));
    }
    return all;
  }

 private:
  int socket_;
};

class HttpServerTest : public testing::Test {
 protected:
  HttpServer& start() {
    options_.port = 0;
    options_.threads = 1;
    server_ = std::move(*HttpServer::start(options_, handler_));
    return *server_;
  }

  HttpOptions options_;
  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersOneRequestAfterAnother) {
  Client client(start());
  // What is there of the next request waits, and empty lines between requests mean nothing.
  client.post("/echo", "one", "\r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\ntwo");
  client.post("/echo", "three", "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 4\r\n\r\nfour");
  const std::string all = client.read();
  size_t at = 0;
  for (const char* body : {"\r\n\r\none", "\r\n\r\ntwo", "\r\n\r\nthree", "\r\n\r\nfour"}) {
    at = all.find(body, at);
    ASSERT_NE(at, all.npos) << body;
  }
}

TEST_F(HttpServerTest, SaysThatARequestCameTooLate) {
  options_.read_timeout = milliseconds(200);
  HttpServer& server = start();
  for (const char* begun : {"POST /echo HT", "POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nfive"}) {
    Client client(server);
    client.send(begun);
    const std::string all = client.read();
    EXPECT_THAT(all, StartsWith("HTTP/1.1 408 Request Timeout\r\n")) << begun;
    EXPECT_THAT(all, HasSubstr("the request took longer than 0.2 s to arrive"));
  }
}

TEST_F(HttpServerTest, BoundsWhatIsNoBody) {
  HttpServer& server = start();
  const std::string chunked = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string word(1000, 'a'), line = "T: " + word + "\r\n";
  const std::pair<std::string, std::string> endless[] = {{"GET /", word},
                                                         {"GET / HTTP/1.1\r\n", line},
                                                         {chunked + "2;", word},
                                                         {chunked + "2\r\n{}\r\n0\r\n", line}};
  for (const auto& [head, more] : endless) {
    Client client(server);
    client.send(head);
    for (int i = 0; i < 1000; ++i) client.send(more);
    EXPECT_THAT(client.read(), StartsWith("HTTP/1.1 431 ")) << head;
  }
}

TEST_F(HttpServerTest, SendsWholeAnswersOfAnyLength) {
  options_.max_unsent_bytes = 1 << 20;
  Client client(start());
  client.post("/big", "8000000", "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nend");
  const std::string all = client.read();
  EXPECT_THAT(all, HasSubstr("Content-Length: 8000000\r\n"));
  EXPECT_GT(all.size(), size_t{8'000'000});
  EXPECT_TRUE(all.ends_with("\r\n\r\nend"));
}

TEST_F(HttpServerTest, DropsClientsThatDoNotReadTheirStream) {
  options_.max_unsent_bytes = 4 << 20;
  Client client(start());
  client.post("/flood", "");
  EXPECT_TRUE(handler_.have_left(1));
}

TEST_F(HttpServerTest, ManyWhoDoNotReadHoldNoMoreThanOneCould) {
  options_.max_unsent_total = 16 << 20;
  HttpServer& server = start();
  std::deque<Client> idle;
  for (int i = 1; i <= 8; ++i) idle.emplace_back(server).post("/flood", "");
  EXPECT_TRUE(handler_.have_left(8));
  Client reader(server);
  reader.post("/big", "9000000", "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nend");
  EXPECT_TRUE(reader.read().ends_with("\r\n\r\nend"));
}

TEST_F(HttpServerTest, SeesThatAClientHasLeft) {
  HttpServer& server = start();
  int count = 0;
  for (const char* after : {"", "\r\n", "GET /echo HTTP/1.1\r\n\r\n"}) {
    {
      Client client(server);
      client.post("/hold", "", after);
      // The next one's answer tells that this request has been taken up.
      Client next(server);
      next.post("/echo", "next");
      next.read_until("next");
    }
    EXPECT_TRUE(handler_.have_left(++count)) << after;
  }
}

TEST_F(HttpServerTest, SaysThatThereAreTooManyConnections) {
  options_.max_connections = 2;
  HttpServer& server = start();
  Client first(server), second(server);
  for (Client* client : {&first, &second}) {
    client->post("/echo", "here");
    client->read_until("here");
  }
  const std::string all = Client(server).read();
  EXPECT_THAT(all, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(all, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_THAT(all, HasSubstr("2 connections are open, and no more may be"));
  first.post("/echo", "still");
  EXPECT_THAT(first.read_until("still"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, ContinuesWhereItIsExpected) {
  Client client(start());
  client.send(
      "POST /echo HTTP/1.1\r\nExpect: 100-Continue\r\nConnection: close\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("body");
  EXPECT_THAT(client.read(), testing::EndsWith("\r\n\r\nbody"));
}

}  // namespace
}  // namespace tercet
