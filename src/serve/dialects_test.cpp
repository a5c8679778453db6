#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/messages_request.h"
#include "serve/responses_request.h"
#include "serve/test_exchange.h"

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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
  const auto read = chat_body_of_responses(json(body));
  return read ? "no error" : read.error().message;
}

std::string messages_error(std::string_view body) {
  const auto read = chat_body_of_messages(json(body), true);
  return read ? "no error" : read.error().message;
}

TEST(ResponsesRequest, ItemsBecomeMessages) {
  const auto read = chat_body_of_responses(json(R"({
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
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->chat.body, json(R"({
      "model": "m", "temperature": 0.5, "parallel_tool_calls": false, "max_completion_tokens": 9,
      "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
                   {"role": "assistant", "content": "I ask.", "reasoning_content": "hm", "tool_calls": [
                      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                      {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                   {"role": "tool", "tool_call_id": "c1", "content": "one"},
                   {"role": "tool", "tool_call_id": "c2", "content": "two"},
                   {"role": "developer", "content": "Now."}],
      "response_format": {"type": "json_schema",
                          "json_schema": {"name": "n", "schema": {"type": "null"}, "strict": true}},
      "reasoning_effort": "low",
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": false}}],
      "tool_choice": {"type": "function", "function": {"name": "f"}}})"));
  EXPECT_THAT(read->chat.ignored, ElementsAre("tools[1] (web_search)"));
}

// As Codex CLI 0.171.0 asks, shortened.
constexpr std::string_view kCodexRequest = R"({
    "model": "test", "stream": true, "store": false, "tool_choice": "auto", "parallel_tool_calls": true,
    "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2", "client_metadata": {"thread_id": "01a2", "x-codex-window-id": "01a2:0"},
    "input": [{"type": "message", "id": "msg_1", "role": "developer",
               "content": [{"type": "input_text", "text": "You are a coding agent."}]},
              {"type": "message", "id": "msg_2", "role": "user",
               "content": [{"type": "input_text", "text": "<environment_context>"}]},
              {"type": "message", "id": "msg_3", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    "tools": [{"type": "function", "name": "exec_command", "description": "Runs a command.", "strict": false,
               "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"],
                              "additionalProperties": false}},
              {"type": "custom", "name": "apply_patch", "description": "Edits files.",
               "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}},
              {"type": "namespace", "name": "agents", "description": "Sub-agents.",
               "tools": [{"type": "function", "name": "close", "description": "Closes one.", "strict": false,
                          "parameters": {"type": "object", "properties": {}}}]},
              {"type": "web_search", "external_web_access": false}]})";

TEST(ResponsesRequest, WhatCodexAsksForIsRead) {
  const auto read = chat_body_of_responses(json(kCodexRequest));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->chat.body, json(R"({
      "model": "test", "stream": true,
      "messages": [{"role": "developer", "content": "You are a coding agent."},
                   {"role": "user", "content": "<environment_context>"}, {"role": "user", "content": "Hi"}],
      "tools": [
        {"type": "function", "function": {"name": "exec_command", "description": "Runs a command.", "strict": false,
          "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"],
                         "additionalProperties": false}}},
        {"type": "function", "function": {"name": "apply_patch",
          "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
                         "additionalProperties": false},
          "description": "Edits files.\n\nThe input's grammar:\nstart: \"x\""}},
        {"type": "function", "function": {"name": "agents.close",
          "description": "agents: Sub-agents.\n\nCloses one.", "strict": false,
          "parameters": {"type": "object", "properties": {}}}}]})"));
  EXPECT_THAT(read->chat.ignored, ElementsAre("tools[3] (web_search)"));
  ASSERT_EQ(read->chat.inputs.count("apply_patch"), 1);
  EXPECT_EQ(read->chat.inputs.at("apply_patch").kind, ResponseFormat::Kind::lark);
  EXPECT_EQ(read->chat.inputs.at("apply_patch").source, "start: \"x\"");
  EXPECT_EQ(read->calls,
            (ResponseCalls{{"agents.close",
                            json(R"({"type": "function_call", "name": "close", "namespace": "agents"})")},
                           {"apply_patch", json(R"({"type": "custom_tool_call", "name": "apply_patch"})")},
                           {"exec_command", json(R"({"type": "function_call", "name": "exec_command"})")}}));
}

TEST(ResponsesRequest, WhatComesBackIsReadAsItWasTold) {
  const auto read = chat_body_of_responses(json(R"({
      "tool_choice": {"type": "custom", "name": "apply_patch"}, "truncation": "disabled", "top_logprobs": 0,
      "input": [{"role": "user", "content": "Hi"},
                {"type": "reasoning", "summary": [], "encrypted_content": "tercet:I wonder."},
                {"type": "custom_tool_call", "status": "completed", "call_id": "c1", "name": "apply_patch", "input": "*** \"x\""},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
                {"type": "function_call", "call_id": "c2", "name": "close", "namespace": "agents", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "closed"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}], "encrypted_content": "gAAA"},
                {"type": "message", "role": "assistant", "phase": "final_answer", "content": [{"type": "output_text", "text": "Done."}]},
                {"role": "user", "content": "More"}]})"));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->chat.body, json(R"({
      "messages": [{"role": "user", "content": "Hi"},
                   {"role": "assistant", "content": null, "reasoning_content": "I wonder.", "tool_calls": [
                     {"id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": {"input": "*** \"x\""}}}]},
                   {"role": "tool", "tool_call_id": "c1", "content": "done"},
                   {"role": "assistant", "content": null, "tool_calls": [
                     {"id": "c2", "type": "function", "function": {"name": "agents.close", "arguments": "{}"}}]},
                   {"role": "tool", "tool_call_id": "c2", "content": "closed"},
                   {"role": "assistant", "content": "Done.", "reasoning_content": "In short."},
                   {"role": "user", "content": "More"}],
      "tool_choice": {"type": "function", "function": {"name": "apply_patch"}}})"));
  EXPECT_THAT(read->chat.ignored, IsEmpty());
}

TEST(ResponsesRequest, NamesWhatItLeavesOut) {
  const auto read = chat_body_of_responses(json(R"({
      "store": true, "truncation": "auto", "top_logprobs": 3, "metadata": {}, "service_tier": "auto",
      "reasoning": {"effort": "low", "summary": "detailed"}, "text": {"verbosity": "low", "format": {"type": "text"}},
      "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
      "input": [{"role": "user", "content": "Hi"},
                {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
                {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]})"));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->chat.body,
            json(R"({"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "low"})"));
  EXPECT_THAT(read->chat.ignored,
              ElementsAre("store", "truncation", "top_logprobs", "input[1] (web_search_call)",
                          "input[2].encrypted_content", "text.verbosity", "reasoning.summary",
                          "include[1] (message.output_text.logprobs)"));
}

TEST(ResponsesRequest, RefusesWhatItCannotRead) {
  EXPECT_EQ(responses_error("{}"), "input: is missing");
  EXPECT_EQ(responses_error(R"({"input": []})"), "input: expected a string or a list of items, found none");
  EXPECT_EQ(responses_error(R"({"input": "x", "previous_response_id": "r"})"),
            "previous_response_id: is not supported: responses are not stored, send the whole input");
  EXPECT_EQ(responses_error(R"({"input": "x", "background": true})"),
            "background: is not supported: responses are not stored");
  EXPECT_EQ(
      responses_error(R"({"input": [{"type": "item_reference", "id": "i"}]})"),
      "input[0].type: expected message, reasoning, function_call, custom_tool_call or an output of these, "
      "found \"item_reference\"");
  EXPECT_EQ(responses_error(R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})"),
            "input[0].content[0]: only parts of text are supported, found \"input_image\"");
  EXPECT_EQ(responses_error(R"({"input": [{"role": "tool", "content": "x"}]})"),
            "input[0].role: expected user, assistant, system or developer, found \"tool\"");
  EXPECT_EQ(responses_error(R"({"input": [{"type": "function_call", "name": "f"}]})"),
            "input[0].call_id: expected a string, found nothing");
  EXPECT_EQ(responses_error(R"({"input": "x", "tool_choice": {"type": "web_search"}})"),
            "tool_choice.type: expected function or custom, found \"web_search\"");
  EXPECT_EQ(responses_error(R"({"input": "x", "tools": [{"type": "namespace", "name": "a"}]})"),
            "tools[0].tools: expected a list, found nothing");
  EXPECT_EQ(
      responses_error(R"({"input": "x", "tools": [{"type": "custom", "name": "a", "format": "lark"}]})"),
      "tools[0].format.type: expected a string, found nothing");
  EXPECT_EQ(responses_error(R"({"input": "x", "tools": [{"type": "custom", "name": "a",
                "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}]})"),
            "tools[0].format.syntax: expected lark or regex, found \"ebnf\"");
  EXPECT_EQ(
      responses_error(R"({"input": "x", "tools": [{"type": "custom", "name": "a", "description": 1}]})"),
      "tools[0].description: expected a string, found number");
  EXPECT_EQ(responses_error(R"({"input": "x", "tools": {}})"), "tools: expected a list, found object");
  EXPECT_EQ(responses_error(R"({"input": "x", "reasoning": "low"})"),
            "reasoning: expected an object, found string");
  EXPECT_EQ(responses_error(R"({"input": "x", "include": "all"})"), "include: expected a list, found string");
  EXPECT_EQ(responses_error(R"({"input": "x", "include": [1]})"), "include[0]: expected a string");
}

TEST(ResponsesRequest, IsLinearInWhatItHolds) {
  constexpr int kMany = 300'000;  // squared, they would take minutes
  Json body{{"model", "m"}, {"messages", "another protocol's"}};
  auto& members = body.get_ref<Json::object_t&>();
  for (int i = 0; i < kMany; ++i) members.emplace_back(fmt::format("x{}", i), i);
  Json input = Json::array();
  for (int i = 0; i < kMany; ++i) input.push_back({{"role", "assistant"}, {"content", "abcd"}});
  body["input"] = std::move(input);
  const auto read = chat_body_of_responses(body);
  ASSERT_TRUE(read) << read.error().message;
  const Json& chat = read->chat.body;
  EXPECT_EQ(chat.size(), size_t{kMany} + 2);
  EXPECT_EQ(chat["x299999"], kMany - 1);
  ASSERT_EQ(chat["messages"].size(), 1u);
  EXPECT_EQ(chat["messages"][0]["content"].get_ref<const std::string&>().size(), size_t{4} * kMany);
}

TEST(MessagesRequest, BlocksBecomeMessages) {
  const auto read = chat_body_of_messages(json(R"({
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
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->chat.body, json(R"({
      "model": "m", "top_k": 4,
      "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
                   {"role": "assistant", "content": "I ask.", "reasoning_content": "hm", "tool_calls": [
                      {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
                   {"role": "tool", "tool_call_id": "t1", "content": "one"},
                   {"role": "user", "content": "And\nnow?"}],
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
      "tool_choice": "required", "parallel_tool_calls": false, "reasoning_effort": "high",
      "thinking_token_budget": 1024, "stop": ["END"], "max_tokens": 9})"));
  EXPECT_THAT(read->chat.ignored, ElementsAre("tools[1] (web_search_20250305)"));
}

// As Claude Code 2.1.197 asks, shortened.
constexpr std::string_view kClaudeCodeRequest = R"({
    "model": "test", "max_tokens": 32000, "stream": true, "metadata": {"user_id": "{}"},
    "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.84c; cc_entrypoint=sdk-cli;"},
               {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
               {"type": "text", "text": "\nBe of use.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": {
                 "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                 "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
                 "required": ["command"], "additionalProperties": false}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>"},
                    {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
                 {"role": "system", "content": "Available agent types"}]})";

TEST(MessagesRequest, WhatClaudeCodeAsksForIsRead) {
  const auto read = chat_body_of_messages(json(kClaudeCodeRequest), true);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->chat.body, json(R"({
      "model": "test", "stream": true,
      "messages": [{"role": "system", "content": "You are an agent.\nBe of use."},
                   {"role": "user", "content": "<system-reminder>\nHi"},
                   {"role": "system", "content": "Available agent types"}],
      "tools": [{"type": "function", "function": {"name": "Bash", "description": "Runs a command.", "parameters": {
                   "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                   "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
                   "required": ["command"], "additionalProperties": false}}}],
      "reasoning_effort": "low", "max_tokens": 32000})"));
  EXPECT_THAT(read->chat.ignored, IsEmpty());
  EXPECT_FALSE(read->omit_thoughts);
}

TEST(MessagesRequest, WhatComesBackIsReadAsItWasTold) {
  const auto read = chat_body_of_messages(json(R"({
      "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
      "output_config": {"format": {"type": "json_schema", "schema": {"type": "null"}}},
      "messages": [{"role": "user", "content": "Hi"},
                   {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "tercet:hm"},
                      {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
                      {"type": "tool_use", "id": "t2", "name": "f", "input": {}}]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": true},
                      {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "tool_reference", "tool_name": "g"}]}]}]})"),
                                          true);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->chat.body, json(R"({
      "messages": [{"role": "user", "content": "Hi"},
                   {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                      {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {}}},
                      {"id": "t2", "type": "function", "function": {"name": "f", "arguments": {}}}]},
                   {"role": "tool", "tool_call_id": "t1", "content": "error"},
                   {"role": "tool", "tool_call_id": "t2", "content": "g"}],
      "reasoning_effort": "high", "thinking_token_budget": 1024,
      "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}, "max_tokens": 9})"));
  EXPECT_THAT(read->chat.ignored, IsEmpty());
  EXPECT_TRUE(read->omit_thoughts);
}

TEST(MessagesRequest, NamesWhatItLeavesOut) {
  const auto read = chat_body_of_messages(json(R"({
      "max_tokens": 9, "output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 1}},
      "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}, "cache_control": {"type": "ephemeral"},
      "tools": [{"name": "f", "input_schema": {}, "input_examples": [{}], "defer_loading": true, "cache_control": null}],
      "messages": [{"role": "user", "content": "Hi"},
                   {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"},
                      {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                      {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                      {"type": "text", "text": "Yes."}]},
                   {"role": "user", "content": "More"}]})"),
                                          true);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->chat.body["messages"],
            json(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."},
                     {"role": "user", "content": "More"}])"));
  EXPECT_TRUE(read->chat.body.contains("context_management"));  // to be named with all that nobody reads
  EXPECT_THAT(
      read->chat.ignored,
      ElementsAre("messages[1].content[0] (redacted_thinking)", "messages[1].content[1] (server_tool_use)",
                  "messages[1].content[2] (web_search_tool_result)", "tools[0].input_examples",
                  "tools[0].defer_loading", "output_config.effort", "output_config.task_budget"));
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
  const auto with = [](std::string_view member) {
    return messages_error(
        fmt::format(R"({{"max_tokens": 1, "messages": [{{"role": "user", "content": "x"}}], {}}})", member));
  };
  EXPECT_EQ(with(R"("output_config": 1)"), "output_config: expected an object, found number");
  EXPECT_EQ(with(R"("output_config": {"format": {"type": "xml"}})"),
            "output_config.format.type: expected json_schema, found \"xml\"");
  EXPECT_EQ(with(R"("output_format": {"type": "json_schema"})"), "output_format.schema: is missing");
  EXPECT_EQ(with(R"("tools": [1])"), "tools[0]: expected an object, found number");
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

TEST(Responses, ThoughtsAreCarriedWhereTheClientSendsThemBack) {
  const TestService test;
  Json body = json(R"({"model": "test", "input": "Hello", "seed": 1, "temperature": 1, "max_output_tokens": 3,
                       "reasoning": {"effort": "low"}})");
  const Json plain = json(ask(test, body, "/v1/responses")->response.body)["output"][0];
  EXPECT_TRUE(plain["encrypted_content"].is_null());
  body["include"] = Json::array({"reasoning.encrypted_content"});
  const Json carried = json(ask(test, body, "/v1/responses")->response.body)["output"][0];
  EXPECT_EQ(carried["content"], plain["content"]);
  EXPECT_EQ(carried["encrypted_content"], "tercet:" + carried["content"][0]["text"].get<std::string>());
}

TEST(Responses, SignsOfLifeAreEvents) {
  const TestService test;
  const Json body = json(R"({"model": "test", "input": "Hello", "max_output_tokens": 1, "stream": true})");
  const auto exchange = post(test, body, "/v1/responses");
  EXPECT_EQ(exchange->keep_alive(),
            "event: keepalive\ndata: {\"type\": \"keepalive\", \"sequence_number\": 2}\n\n");
  exchange->wait();
  EXPECT_EQ(events_of(exchange->stream)[2]["sequence_number"], 3);
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

TEST(Messages, ThoughtsCanBeOmitted) {
  const TestService test;
  Json body = json(R"({"model": "test", "messages": [{"role": "user", "content": "Hello"}], "seed": 1,
                       "temperature": 1, "max_tokens": 3, "thinking": {"type": "adaptive"}})");
  const Json told = json(ask(test, body, "/v1/messages")->response.body)["content"];
  EXPECT_EQ(told[0]["signature"], "none");
  body["thinking"]["display"] = "omitted";
  const Json omitted = json(ask(test, body, "/v1/messages")->response.body)["content"];
  EXPECT_EQ(omitted[0]["thinking"], "");
  EXPECT_EQ(omitted[0]["signature"], "tercet:" + told[0]["thinking"].get<std::string>());
  body["stream"] = true;
  const std::string stream = ask(test, body, "/v1/messages")->stream;
  EXPECT_EQ(stream.find("thinking_delta"), std::string::npos);
  EXPECT_NE(stream.find(to_json_text(omitted[0]["signature"])), std::string::npos);
}

TEST(Messages, SaysWhichLimitEndedIt) {
  const TestService test;
  const std::string text(1500, 'a');
  Json body{
      {"model", "test"}, {"messages", Json::array({Json{{"role", "user"}, {"content", text}}})}, {"seed", 1}};
  const auto exchange = ask(test, body, "/v1/messages/count_tokens");
  const int64_t room = TestService::kContext - json(exchange->response.body)["input_tokens"].get<int64_t>();
  ASSERT_GT(room, 0);
  for (const int64_t most : {room, room + 1}) {
    body["max_tokens"] = most;
    body["ignore_eos"] = true;
    const Json message = json(ask(test, body, "/v1/messages")->response.body);
    EXPECT_EQ(message["usage"]["output_tokens"], room);
    EXPECT_EQ(message["stop_reason"], most == room ? "max_tokens" : "model_context_window_exceeded");
  }
}

TEST(Messages, SignsOfLifeAreEvents) {
  const TestService test;
  const Json body = json(
      R"({"model": "test", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "stream": true})");
  const auto exchange = post(test, body, "/v1/messages");
  EXPECT_EQ(exchange->keep_alive(), "event: ping\ndata: {\"type\": \"ping\"}\n\n");
  exchange->wait();
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
