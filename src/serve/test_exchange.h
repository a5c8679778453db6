// For tests: an exchange without a network, and a server's parts on a fake executor.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/fake_executor.h"
#include "serve/router.h"
#include "serve/test_tasks.h"
#include "text/test_model.h"

namespace tercet {

/// Collects what an endpoint writes. Tasks run on the thread that waits.
class TestExchange final : public Exchange {
 public:
  void post(std::function<void()> task) override { tasks_.post(std::move(task)); }
  void on_leave(std::function<void()> call) override { leave_ = std::move(call); }
  void respond(HttpResponse given) override {
    EXPECT_FALSE(ended);
    response = std::move(given);
    finish();
  }
  void begin_stream(std::function<std::string()> idle) override {
    EXPECT_FALSE(streaming);
    streaming = true;
    keep_alive = std::move(idle);
  }
  void write(std::string text) override {
    EXPECT_TRUE(streaming && !ended);
    stream += text;
  }
  void end() override {
    EXPECT_TRUE(streaming && !ended);
    finish();
  }
  void note(std::string, std::string) override {}

  /// Runs tasks until the answer has ended.
  void wait() {
    while (!ended) tasks_.run_next();
  }
  void leave() { std::exchange(leave_, nullptr)(); }

  HttpResponse response;
  std::string stream;
  std::function<std::string()> keep_alive;  // of the stream, until it ends
  bool streaming = false;
  bool ended = false;

 private:
  void finish() {
    ended = true;
    leave_ = nullptr;
    keep_alive = nullptr;
  }

  TestTasks tasks_;
  std::function<void()> leave_;
};

/// hy3-tiny's text side over logits that are a hash of the tokens before.
struct TestService {
  static constexpr int32_t kVocabulary = 4096;
  static constexpr int32_t kContext = 2048;

  explicit TestService(ServiceOptions options = {})
      : executor(64, 256, kVocabulary),
        driver(make_engine(executor, tags.id(Tag::eos)), {.max_sequences = 8, .max_waiting = 8}),
        service{model, driver, options} {}

  static std::unique_ptr<Engine> make_engine(FakeExecutor& executor, int32_t eos) {
    EngineOptions options;
    options.max_positions = kContext;
    options.max_sequences = 8;
    options.eos_tokens = {eos};
    return std::move(*Engine::create(options, executor));
  }

  Tokenizer tokenizer = std::move(*Tokenizer::load(kTinyModel));
  Tags tags = std::move(*Tags::read(tokenizer));
  ChatTemplate chat_template = std::move(*ChatTemplate::load(kTinyModel));
  std::vector<int32_t> ends{tags.id(Tag::eos)};
  AnswerGrammars grammars = std::move(*AnswerGrammars::create(tokenizer, tags, ends, kVocabulary));
  ServedModel model{.names = {"test"},
                    .path = "test",
                    .fingerprint = "fp_test",
                    .tokenizer = tokenizer,
                    .tags = tags,
                    .chat_template = chat_template,
                    .grammars = grammars,
                    .defaults = {},
                    .vocabulary = kVocabulary,
                    .trained_context = kContext,
                    .created = 0};
  FakeExecutor executor;
  EngineDriver driver;
  Service service;
};

inline std::shared_ptr<TestExchange> post(const TestService& test, const Json& body, const char* path) {
  Router router({});
  router.serve(test.service);
  HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.body = to_json_text(body);
  auto exchange = std::make_shared<TestExchange>();
  router.answer(std::move(request), exchange);
  return exchange;
}

/// What is answered to a body that is posted.
inline std::shared_ptr<TestExchange> ask(const TestService& test, const Json& body, const char* path) {
  const auto exchange = post(test, body, path);
  exchange->wait();
  return exchange;
}

}  // namespace tercet
