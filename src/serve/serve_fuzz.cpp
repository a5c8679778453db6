// Fuzzes HTTP requests against a listening server, and JSON bodies against each endpoint: whatever comes,
// there is an answer in the right shape, and afterwards no request is left.

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "base/check.h"
#include "serve/http_server.h"
#include "serve/router.h"
#include "serve/test_tasks.h"
#include "text/test_model.h"

namespace tercet {
namespace {

/// Draws whatever its position says.
class NumberExecutor final : public Executor {
 public:
  StepResult run(const StepPlan& plan) override {
    StepResult result;
    for (const RowOutput& output : plan.outputs) {
      RowResult& row = result.rows.emplace_back();
      row.token =
          output.draw ? static_cast<int32_t>(output.params.position * 2654435761U % 4096U) : output.target;
      for (int32_t i = 0; i < output.top; ++i) row.top.push_back({i, -1.0F - static_cast<float>(i)});
    }
    result.failed.assign(plan.batch.sequences.size(), 0);
    return result;
  }
  int32_t vocabulary() const override { return 4096; }
  int32_t pages() const override { return 64; }
  int32_t max_rows() const override { return 256; }
};

class Collected final : public Exchange {
 public:
  void post(std::function<void()> task) override { tasks_.post(std::move(task)); }
  void on_leave(std::function<void()>) override {}
  void respond(HttpResponse response) override {
    TERCET_CHECK(!ended_ && !streaming_);
    TERCET_CHECK(parse_json(response.body).has_value());
    ended_ = true;
  }
  void begin_stream(std::function<std::string()>) override {
    TERCET_CHECK(!ended_ && !streaming_);
    streaming_ = true;
  }
  void write(std::string text) override {
    TERCET_CHECK(streaming_ && !ended_);
    last_ = std::move(text);
  }
  void end() override {
    TERCET_CHECK(streaming_ && !last_.empty());
    ended_ = true;
  }
  void note(std::string, std::string) override {}

  void wait() {
    while (!ended_) tasks_.run_next();
  }

 private:
  TestTasks tasks_;
  std::string last_;
  bool streaming_ = false, ended_ = false;
};

struct World {
  World() {
    HttpOptions options;
    options.port = 0;
    options.read_timeout = std::chrono::milliseconds(200);
    server = std::move(*HttpServer::start(options, router));
    router.serve(service);
  }

  static std::unique_ptr<Engine> make_engine(Executor& executor) {
    EngineOptions options;
    options.max_positions = 300;  // so that every answer is short
    options.max_sequences = 8;
    return std::move(*Engine::create(options, executor));
  }

  Tokenizer tokenizer = std::move(*Tokenizer::load(kTinyModel));
  Tags tags = std::move(*Tags::read(tokenizer));
  ChatTemplate chat_template = std::move(*ChatTemplate::load(kTinyModel));
  std::vector<int32_t> ends{tags.id(Tag::eos)};
  AnswerGrammars grammars = std::move(*AnswerGrammars::create(tokenizer, tags, ends, 4096));
  ServedModel model{.names = {"test"},
                    .path = "test",
                    .fingerprint = "fp_test",
                    .tokenizer = tokenizer,
                    .tags = tags,
                    .chat_template = chat_template,
                    .grammars = grammars,
                    .defaults = {},
                    .vocabulary = 4096,
                    .trained_context = 300,
                    .created = 0};
  NumberExecutor executor;
  EngineDriver driver{make_engine(executor), {.max_sequences = 8, .max_waiting = 200}};
  Service service{model, driver, {}};
  Router router{RouterOptions{}};
  std::unique_ptr<HttpServer> server;
};

/// A connection to this machine. The fuzzer's alarm may interrupt a call.
int connect_to(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (;;) {
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    TERCET_CHECK(connection >= 0);
    if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
      return connection;
    TERCET_CHECK_EQ(errno, EINTR);
    close(connection);
  }
}

void send_bytes(uint16_t port, std::string_view bytes) {
  const int connection = connect_to(port);
  while (!bytes.empty()) {
    const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  shutdown(connection, SHUT_WR);
  char buffer[4096];
  std::string answer;
  for (ssize_t got = 0; (got = recv(connection, buffer, sizeof(buffer), 0)) > 0;) {
    if (answer.size() < 16) answer.append(buffer, static_cast<size_t>(got));
  }
  TERCET_CHECK(answer.empty() || answer.starts_with("HTTP/1.1 "));
  close(connection);
}

void fuzz(World& world, std::string_view bytes) {
  static constexpr const char* kPaths[] = {
      "/v1/chat/completions", "/v1/completions",           "/v1/responses",
      "/v1/messages",         "/v1/messages/count_tokens", "/tokenize",
      "/detokenize",          "/apply-template",           "/v1/kl"};
  const size_t which = static_cast<unsigned char>(bytes[0]) % (std::size(kPaths) + 1);
  bytes.remove_prefix(1);
  if (which == std::size(kPaths)) {
    send_bytes(world.server->port(), bytes);
  } else {
    HttpRequest request;
    request.method = "POST";
    request.path = kPaths[which];
    request.body = bytes;
    const auto exchange = std::make_shared<Collected>();
    world.router.answer(std::move(request), exchange);
    exchange->wait();
  }
  while (world.driver.stats().running + world.driver.stats().waiting > 0) std::this_thread::yield();
  TERCET_CHECK_EQ(world.driver.stats().pages_active, 0);
}

}  // namespace
}  // namespace tercet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tercet::World world;
  if (size > 0) tercet::fuzz(world, {reinterpret_cast<const char*>(data), size});
  return 0;
}
