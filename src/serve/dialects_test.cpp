#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/messages_request.h"
#include "serve/responses_request.h"
#include "serve/test_exchange.h"

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

Json json(std::string_view text) { return parse_json(text).value(); }

/// The data of a stream's events; each event's name is its type.
std::vector<Json> events_of(const std::string& stream) {
  std::vector<Json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    const std::string text = stream.substr(at, end - at);
    at = end + 2;
    if (text.starts_with(":")) continue;
    const size_t line = text.find("\ndata: ");
    events.push_back(json(text.substr(line + 7)));
    EXPECT_EQ(text.substr(0, line), "event: " + events.back()["type"].get<std::string>());
  }
  return events;
}

std::string responses_error(std::string_view body) {
  const auto chat = chat_body_of_responses(json(body));
  return chat ? "no error" : chat.error().message;
}

std::string messages_error(std::string_view body) {
  const auto chat = chat_body_of_messages(json(body), true);
  return chat ? "no error" : chat.error().message;
}

TEST(ResponsesRequest, ItemsBecomeMessages) {
  const auto chat = chat_body_of_responses(json(R"({
      "model": "m", "instructions": "Be brief.", "temperature": 0.5, "store": false, "max_output_tokens": 9,
      "reasoning": {"effort": "low", "summary": "auto"}, "parallel_tool_calls": false,
      "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "null"}, "strict": true}},
      "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": false},
                {"type": "web_search"}],
      "tool_choice": {"type": "function", "name": "f"},
      "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]},
                {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I ask."}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}"},
                {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "one"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
                {"type": "message", "role": "developer", "content": "Now."}]})"));
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->body, json(R"({
      "model": "m", "temperature": 0.5,
      "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
                   {"role": "assistant", "content": "I ask.", "reasoning_content": "hm", "tool_calls": [
                      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                      {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                   {"role": "tool", "tool_call_id": "c1", "content": "one"},
                   {"role": "tool", "tool_call_id": "c2", "content": "two"},
                   {"role": "developer", "content": "Now."}],
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": false}}],
      "tool_choice": {"type": "function", "function": {"name": "f"}},
      "response_format": {"type": "json_schema",
                          "json_schema": {"name": "n", "schema": {"type": "null"}, "strict": true}},
      "parallel_tool_calls": false, "reasoning_effort": "low", "max_completion_tokens": 9})"));
  EXPECT_THAT(chat->ignored, ElementsAre("tools[1] (web_search)"));
}

TEST(ResponsesRequest, RefusesWhatItCannotRead) {
  EXPECT_EQ(responses_error("{}"), "input: is missing");
  EXPECT_EQ(responses_error(R"({"input": []})"), "input: expected a string or a list of items, found none");
  EXPECT_EQ(responses_error(R"({"input": "x", "previous_response_id": "r"})"),
            "previous_response_id: is not supported: responses are not stored, send the whole input");
  EXPECT_EQ(responses_error(R"({"input": "x", "background": true})"),
            "background: is not supported: responses are not stored");
  EXPECT_EQ(responses_error(R"({"input": [{"type": "item_reference", "id": "i"}]})"),
            "input[0].type: expected message, function_call, function_call_output or reasoning, found "
            "\"item_reference\"");
  EXPECT_EQ(responses_error(R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})"),
            "input[0].content[0]: only parts of text are supported, found \"input_image\"");
  EXPECT_EQ(responses_error(R"({"input": [{"role": "tool", "content": "x"}]})"),
            "input[0].role: expected user, assistant, system or developer, found \"tool\"");
  EXPECT_EQ(responses_error(R"({"input": [{"type": "function_call", "name": "f"}]})"),
            "input[0].call_id: expected a string, found nothing");
  EXPECT_EQ(responses_error(R"({"input": "x", "tool_choice": {"type": "web_search"}})"),
            "tool_choice.type: expected function, found \"web_search\"");
}

TEST(ResponsesRequest, IsLinearInWhatItHolds) {
  constexpr int kMany = 300'000;  // squared, they would take minutes
  Json body{{"model", "m"}, {"messages", "another protocol's"}};
  auto& members = body.get_ref<Json::object_t&>();
  for (int i = 0; i < kMany; ++i) members.emplace_back(fmt::format("x{}", i), i);
  Json input = Json::array();
  for (int i = 0; i < kMany; ++i) input.push_back({{"role", "assistant"}, {"content", "abcd"}});
  body["input"] = std::move(input);
  const auto chat = chat_body_of_responses(body);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->body.size(), size_t{kMany} + 2);
  EXPECT_EQ(chat->body["x299999"], kMany - 1);
  ASSERT_EQ(chat->body["messages"].size(), 1u);
  EXPECT_EQ(chat->body["messages"][0]["content"].get_ref<const std::string&>().size(), size_t{4} * kMany);
}

TEST(MessagesRequest, BlocksBecomeMessages) {
  const auto chat = chat_body_of_messages(json(R"({
      "model": "m", "max_tokens": 9, "top_k": 4, "stop_sequences": ["END"], "metadata": {"user_id": "u"},
      "system": [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": " brief."}],
      "thinking": {"type": "enabled", "budget_tokens": 1024},
      "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}},
                {"type": "web_search_20250305", "name": "web_search"}],
      "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
      "messages": [{"role": "user", "content": "Hello"},
                   {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                      {"type": "text", "text": "I ask."}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}]},
                      {"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]}]})"),
                                          true);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->body, json(R"({
      "model": "m", "top_k": 4,
      "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
                   {"role": "assistant", "content": "I ask.", "reasoning_content": "hm", "tool_calls": [
                      {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
                   {"role": "tool", "tool_call_id": "t1", "content": "one"},
                   {"role": "user", "content": "And\nnow?"}],
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
      "tool_choice": "required", "parallel_tool_calls": false, "reasoning_effort": "high",
      "thinking_token_budget": 1024, "stop": ["END"], "max_tokens": 9})"));
  EXPECT_THAT(chat->ignored, ElementsAre("tools[1] (\"web_search_20250305\")"));
}

TEST(MessagesRequest, RefusesWhatItCannotRead) {
  EXPECT_EQ(messages_error(R"({"max_tokens": 1})"), "messages: expected a list of at least one message");
  EXPECT_EQ(messages_error(R"({"messages": [{"role": "user", "content": "x"}]})"), "max_tokens: is missing");
  EXPECT_EQ(messages_error(
                R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]})"),
            "messages: the last one is the assistant's; to go on with an answer is not supported");
  EXPECT_EQ(messages_error(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
            "messages[0].content[0]: expected a block of type text or tool_result, found \"image\"");
  EXPECT_EQ(messages_error(R"({"messages": [{"role": "tool", "content": "x"}]})"),
            "messages[0].role: expected user or assistant, found \"tool\"");
  EXPECT_EQ(
      messages_error(R"({"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "all"}})"),
      "tool_choice.type: expected auto, any, tool or none, found \"all\"");
  EXPECT_EQ(messages_error(R"({"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "on"}})"),
            "thinking.type: expected enabled, adaptive or disabled, found \"on\"");
}

TEST(Responses, TheStreamSaysWhatTheWholeSays) {
  const TestService test;
  Json body = json(
      R"({"model": "test", "input": "Hello", "seed": 1, "temperature": 1, "reasoning": {"effort": "low"}})");
  for (const int most : {1, 2, 7, 40}) {
    body["max_output_tokens"] = most;
    body["stream"] = false;
    const Json whole = json(ask(test, body, "/v1/responses")->response.body);
    EXPECT_EQ(whole["object"], "response");
    EXPECT_EQ(whole["usage"]["output_tokens"], most);
    EXPECT_EQ(whole["status"], "incomplete");
    EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");

    body["stream"] = true;
    const auto events = events_of(ask(test, body, "/v1/responses")->stream);
    ASSERT_GT(events.size(), 3u);
    EXPECT_EQ(events[0]["type"], "response.created");
    EXPECT_EQ(events[1]["type"], "response.in_progress");
    EXPECT_EQ(events.back()["type"], "response.incomplete");
    std::map<size_t, std::string> texts;
    for (size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i]["sequence_number"], i);
      if (events[i].contains("delta"))
        texts[events[i]["output_index"].get<size_t>()] += events[i]["delta"].get<std::string>();
    }
    const Json& streamed = events.back()["response"]["output"];
    ASSERT_EQ(streamed.size(), whole["output"].size());
    for (size_t i = 0; i < streamed.size(); ++i) {
      EXPECT_EQ(streamed[i]["type"], whole["output"][i]["type"]);
      EXPECT_EQ(streamed[i]["content"], whole["output"][i]["content"]);
      if (streamed[i]["type"] == "function_call") continue;
      EXPECT_EQ(streamed[i]["content"][0]["text"], texts[i]);
    }
  }
}

TEST(Responses, ErrorsAreOpenAIs) {
  const TestService test;
  const auto exchange = ask(test, json(R"({"model": "test", "input": []})"), "/v1/responses");
  EXPECT_EQ(exchange->response.status, 400);
  const Json error = json(exchange->response.body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "input");

  const Json web =
      json(R"({"model": "test", "input": "x", "max_output_tokens": 1, "tools": [{"type": "web_search"}]})");
  EXPECT_THAT(json(ask(test, web, "/v1/responses")->response.body)["warnings"],
              ElementsAre("tools[0] (web_search)"));
  const TestService strict({.strict = true});
  const Json refused = json(ask(strict, web, "/v1/responses")->response.body);
  EXPECT_EQ(refused["error"]["message"], "tools[0] (web_search): is not supported");
}

TEST(Messages, TheStreamSaysWhatTheWholeSays) {
  const TestService test;
  Json body = json(
      R"({"model": "test", "messages": [{"role": "user", "content": "Hello"}], "seed": 1, "temperature": 1,
                       "thinking": {"type": "adaptive"}})");
  for (const int most : {1, 2, 7, 40}) {
    body["max_tokens"] = most;
    body["stream"] = false;
    const Json whole = json(ask(test, body, "/v1/messages")->response.body);
    EXPECT_EQ(whole["type"], "message");
    EXPECT_EQ(whole["role"], "assistant");
    EXPECT_EQ(whole["stop_reason"], "max_tokens");
    EXPECT_TRUE(whole["stop_sequence"].is_null());
    EXPECT_EQ(whole["usage"]["output_tokens"], most);

    body["stream"] = true;
    const auto events = events_of(ask(test, body, "/v1/messages")->stream);
    ASSERT_GT(events.size(), 3u);
    EXPECT_EQ(events[0]["type"], "message_start");
    EXPECT_EQ(events.back()["type"], "message_stop");
    const Json& ending = events[events.size() - 2];
    EXPECT_EQ(ending["type"], "message_delta");
    EXPECT_EQ(ending["delta"]["stop_reason"], "max_tokens");
    EXPECT_EQ(ending["usage"]["output_tokens"], most);
    Json content = Json::array();
    for (const Json& event : events) {
      if (event["type"] == "content_block_start") {
        EXPECT_EQ(event["index"], content.size());
        content.push_back(event["content_block"]);
      }
      if (event["type"] != "content_block_delta") continue;
      const Json& delta = event["delta"];
      Json& block = content[event["index"].get<size_t>()];
      for (const char* name : {"text", "thinking", "signature"}) {
        if (delta.contains(name))
          block[name] = block[name].get<std::string>() + delta[name].get<std::string>();
      }
    }
    EXPECT_EQ(content, whole["content"]);
  }
}

TEST(Messages, CountsTokensAndRefusesInAnthropicsShape) {
  const TestService test;
  const Json body = json(R"({"model": "test", "messages": [{"role": "user", "content": "Hello"}]})");
  const int64_t count =
      json(ask(test, body, "/v1/messages/count_tokens")->response.body)["input_tokens"].get<int64_t>();
  Json limited = body;
  limited["max_tokens"] = 1;
  EXPECT_EQ(json(ask(test, limited, "/v1/messages")->response.body)["usage"]["input_tokens"], count);
  const auto refused = ask(test, body, "/v1/messages");
  EXPECT_EQ(refused->response.status, 400);
  EXPECT_EQ(
      json(refused->response.body),
      json(
          R"({"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: is missing"}})"));
  limited["model"] = "claude";
  const auto unknown = ask(test, limited, "/v1/messages");
  EXPECT_EQ(unknown->response.status, 404);
  EXPECT_EQ(json(unknown->response.body)["error"]["type"], "not_found_error");
}

}  // namespace
}  // namespace tercet
