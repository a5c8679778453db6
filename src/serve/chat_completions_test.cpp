#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "serve/test_exchange.h"

namespace tercet {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

std::vector<Json> events_of(const std::string& stream) {
  EXPECT_THAT(stream, EndsWith("data: [DONE]\n\n"));
  std::vector<Json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    const std::string line = stream.substr(at, end - at);
    at = end + 2;
    if (line.starts_with(":") || line == "data: [DONE]") continue;
    events.push_back(*parse_json(line.substr(6)));
  }
  return events;
}

struct Told {
  std::string content, reasoning, finish;
  std::map<int, Json> calls;  // by index: name, arguments
  int roles = 0;
};

void add_call(const Json& delta, Told& told) {
  const int index = delta["index"].get<int>();
  const Json& function = delta["function"];
  if (!told.calls.contains(index)) {
    EXPECT_EQ(delta["type"], "function");
    EXPECT_THAT(delta["id"].get<std::string>(), HasSubstr("call_"));
    told.calls[index] = {{"name", function["name"]}, {"arguments", ""}};
  } else {
    EXPECT_FALSE(delta.contains("id") || function.contains("name"));
  }
  told.calls[index]["arguments"] =
      told.calls[index]["arguments"].get<std::string>() + function["arguments"].get<std::string>();
}

std::map<int, Told> joined(const std::vector<Json>& events) {
  std::map<int, Told> choices;
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) {
      Told& told = choices[choice["index"].get<int>()];
      EXPECT_EQ(told.finish, "") << "nothing follows a choice's end";
      const Json& delta = choice["delta"];
      told.roles += delta.contains("role") ? 1 : 0;
      if (delta.contains("content")) told.content += delta["content"].get<std::string>();
      if (delta.contains("reasoning_content"))
        told.reasoning += delta["reasoning_content"].get<std::string>();
      if (delta.contains("tool_calls")) {
        for (const Json& call : delta["tool_calls"]) add_call(call, told);
      }
      if (!choice["finish_reason"].is_null()) told.finish = choice["finish_reason"].get<std::string>();
    }
  }
  return choices;
}

/// A request whose answer is full of tags, so that every path of the parser is met.
Json tagged_request(const TestService& test, int seed, int max_tokens) {
  Json bias = Json::object();
  for (size_t tag = 0; tag < static_cast<size_t>(Tag::begin_of_sentence); ++tag) {
    const int32_t id = test.tags.id(static_cast<Tag>(tag));
    if (id >= 0) bias[std::to_string(id)] = 3.5;
  }
  bias[std::to_string(test.tags.id(Tag::eos))] = 2;
  return {{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})},
          {"reasoning_effort", seed % 2 == 0 ? "high" : "none"},
          {"logit_bias", bias},
          {"seed", seed},
          {"n", 2},
          {"stop", Json::array({"e"})},
          {"max_tokens", max_tokens}};
}

TEST(ChatCompletions, StreamAndWholeAgree) {
  const TestService test;
  std::set<std::string> reasons;
  for (int seed = 0; seed < 40; ++seed) {
    Json request = tagged_request(test, seed, 1 + seed * 3);
    const auto whole = ask(test, request, "/v1/chat/completions");
    ASSERT_EQ(whole->response.status, 200) << whole->response.body;
    request["stream"] = true;
    const auto told = joined(events_of(ask(test, request, "/v1/chat/completions")->stream));
    const Json body = *parse_json(whole->response.body);
    ASSERT_EQ(body["choices"].size(), 2U);
    for (int i = 0; i < 2; ++i) {
      const Json& choice = body["choices"][static_cast<size_t>(i)];
      const Json& message = choice["message"];
      const Told& mine = told.at(i);
      EXPECT_EQ(mine.roles, 1);
      EXPECT_EQ(mine.content, message["content"].is_null() ? "" : message["content"].get<std::string>());
      EXPECT_EQ(mine.reasoning,
                message.contains("reasoning_content") ? message["reasoning_content"].get<std::string>() : "");
      EXPECT_EQ(mine.finish, choice["finish_reason"]);
      reasons.insert(mine.finish);
    }
  }
  EXPECT_EQ(reasons, (std::set<std::string>{"length", "stop"}));
}

TEST(ChatCompletions, AnAnswerSaysWhatItTookAndWhereItIsFrom) {
  const TestService test;
  const Json usage =
      *parse_json(ask(test, tagged_request(test, 1, 5), "/v1/chat/completions")->response.body);
  EXPECT_LE(usage["usage"]["completion_tokens"].get<int>(), 10);
  EXPECT_EQ(usage["usage"]["total_tokens"].get<int>(),
            usage["usage"]["prompt_tokens"].get<int>() + usage["usage"]["completion_tokens"].get<int>());
  EXPECT_EQ(usage["model"], "test");
  EXPECT_EQ(usage["system_fingerprint"], "fp_test");
  EXPECT_EQ(usage["seed"], 1);
}

TEST(ChatCompletions, AFailedRowIsOneTerminalEvent) {
  TestService test;
  Json request{
      {"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}, {"max_tokens", 50}, {"seed", 3}};
  test.executor.failing_token = test.tags.id(Tag::assistant);  // of every prompt
  const auto whole = ask(test, request, "/v1/chat/completions");
  EXPECT_EQ(whole->response.status, 500);
  EXPECT_THAT(whole->response.body, HasSubstr("the model met a value that is not finite"));
  request["stream"] = true;
  const auto events = events_of(ask(test, request, "/v1/chat/completions")->stream);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1]["error"]["type"], "server_error");
}

TEST(ChatCompletions, AClientThatLeavesCancelsItsParts) {
  TestService test;
  const Json request = *parse_json(
      R"({"messages": [{"role": "user", "content": "Hi"}], "n": 3, "ignore_eos": true, "stream": true})");
  const auto exchange = post(test, request, "/v1/chat/completions");
  exchange->leave();
  while (test.driver.stats().finished[static_cast<size_t>(FinishReason::cancelled)] < 3)
    std::this_thread::yield();
  test.driver.drain(std::chrono::milliseconds(60000));
  EXPECT_EQ(test.driver.stats().pages_active, 0);
}

TEST(Completions, StreamAndWholeAgree) {
  const TestService test;
  for (int seed = 0; seed < 12; ++seed) {
    Json request{{"prompt", Json::array({"A river", Json::array({5, 6, 7})})},
                 {"seed", seed},
                 {"logprobs", 2},
                 {"echo", seed % 2 == 1},
                 {"stop", "a"},
                 {"max_tokens", seed * 2}};
    const auto whole = ask(test, request, "/v1/completions");
    ASSERT_EQ(whole->response.status, 200) << whole->response.body;
    const Json body = *parse_json(whole->response.body);
    request["stream"] = true;
    std::map<int, std::string> texts;
    std::map<int, size_t> tokens;
    for (const Json& event : events_of(ask(test, request, "/v1/completions")->stream)) {
      const Json& choice = event["choices"][0];
      const int index = choice["index"].get<int>();
      texts[index] += choice["text"].get<std::string>();
      tokens[index] += choice["logprobs"]["tokens"].size();
    }
    for (int i = 0; i < 2; ++i) {
      const Json& choice = body["choices"][static_cast<size_t>(i)];
      EXPECT_EQ(texts[i], choice["text"]);
      EXPECT_EQ(tokens[i], choice["logprobs"]["token_logprobs"].size());
      EXPECT_EQ(choice["logprobs"]["text_offset"].size(), tokens[i]);
    }
  }
}

TEST(Completions, RefusesMoreAnswersThanThereArePlacesBeforeItMakesThem) {
  const TestService test;  // 8 run, 8 wait
  const auto error_of = [&](const Json& request, const char* path) {
    const auto exchange = ask(test, request, path);
    EXPECT_EQ(exchange->response.status, 400);
    return (*parse_json(exchange->response.body))["error"];
  };
  Json prompts = Json::array();
  for (int i = 0; i < 100'000; ++i) prompts.push_back(Json::array({i % 100}));
  Json error = error_of({{"prompt", prompts}, {"n", 128}}, "/v1/completions");
  EXPECT_EQ(error["message"], "prompt: 12800000 answers are wanted at once, and no more than 16 may be");
  EXPECT_EQ(error["param"], "prompt");
  const Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  error = error_of({{"messages", messages}, {"n", 17}}, "/v1/chat/completions");
  EXPECT_EQ(error["message"], "n: 17 answers are wanted at once, and no more than 16 may be");
  EXPECT_EQ(error["param"], "n");
}

TEST(ChatCompletions, EveryChoiceKeepsTheForm) {
  const TestService test;
  Json request{{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})},
               {"structured_outputs", {{"regex", "[a-e]{3}"}}},
               {"temperature", 1.5},
               {"seed", 1},
               {"n", 8}};
  const Json body = *parse_json(ask(test, request, "/v1/chat/completions")->response.body);
  ASSERT_EQ(body["choices"].size(), 8u) << body;
  std::set<std::string> contents;
  for (const Json& choice : body["choices"]) {
    const std::string content = choice["message"]["content"].get<std::string>();
    EXPECT_EQ(content.size(), 3u);
    EXPECT_EQ(content.find_first_not_of("abcde"), content.npos) << content;
    contents.insert(content);
  }
  EXPECT_GT(contents.size(), 1u);
}

}  // namespace
}  // namespace tercet
