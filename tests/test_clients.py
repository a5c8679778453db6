"""What clients send that were made for other servers: agents, and people with curl."""

import json
import re

import anthropic
import httpx
import openai
import pytest
from serving import events_of, serving, user

SUM = "What is 17 + 25?"


@pytest.fixture(scope="module")
def server():
    with serving("--log-prompts") as running:
        yield running


def events(text):
    """(type, data) of a stream's events; comments left out, each event named by its type."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
            assert found[-1][1]["type"] == found[-1][0]
    return found


# Codex CLI 0.171.0, `codex exec`: its instructions, schemas and descriptions shortened.
EXEC_COMMAND = {"type": "function", "name": "exec_command", "description": "Runs a command in a PTY.", "strict": False,
                "parameters": {"type": "object", "properties": {
                    "cmd": {"type": "string", "description": "Shell command to execute."},
                    "yield_time_ms": {"type": "number"},
                    "prefix_rule": {"type": "array", "items": {"type": "string"}},
                    "sandbox_permissions": {"type": "string", "enum": ["use_default", "require_escalated"]}},
                    "required": ["cmd"], "additionalProperties": False}}
CLOSE_AGENT = {"type": "function", "name": "close_agent", "description": "Close an agent.", "strict": False,
               "parameters": {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"],
                              "additionalProperties": False}}
APPLY_PATCH = {"type": "custom", "name": "apply_patch", "description": "Use the `apply_patch` tool to edit files.",
               "format": {"type": "grammar", "syntax": "lark", "definition": """start: begin_patch hunk end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line add_line?
delete_hunk: "*** Delete File: " filename LF
filename: /(.{1,20})/
add_line: "+" /(.{0,30})/ LF -> line

%import common.LF
"""}}
CODEX = {
    "model": "hy3-tiny", "stream": True, "store": False, "tool_choice": "auto", "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "01a22bfc",
    "client_metadata": {"thread_id": "01a22bfc", "x-codex-window-id": "01a22bfc:0", "turn_id": "01a22bfd"},
    "tools": [EXEC_COMMAND, APPLY_PATCH,
              {"type": "namespace", "name": "multi_agent_v1", "description": "Tools for sub-agents.",
               "tools": [CLOSE_AGENT]},
              {"type": "web_search", "external_web_access": False}],
    "input": [
        {"type": "message", "id": "msg_1", "role": "developer",
         "content": [{"type": "input_text", "text": "You are a coding agent running in the Codex CLI."}]},
        {"type": "message", "id": "msg_2", "role": "user",
         "content": [{"type": "input_text", "text": "<environment_context>\n  <cwd>/project</cwd>\n"}]},
        {"type": "message", "id": "msg_3", "role": "user", "content": [{"type": "input_text", "text": SUM}]}]}


def codex(server, **changes):
    """The events of a request as Codex makes it, with the final response's output."""
    response = server.post("/v1/responses", {**CODEX, "temperature": 0, "max_output_tokens": 200, **changes})
    assert response.status_code == 200, response.text
    found = events(response.text)
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert found[0][0] == "response.created" and found[-1][0] in ("response.completed", "response.incomplete")
    return found, found[-1][1]["response"]


def test_codex_is_understood(server):
    found, response = codex(server)
    assert response["warnings"] == ["tools[3] (web_search)"]
    done = [data["item"] for name, data in found if name == "response.output_item.done"]
    assert done == response["output"] and done
    # A turn later: what was answered comes back without ids, thoughts as they were carried.
    history = [{key: value for key, value in item.items() if key not in ("id", "status", "content")}
               if item["type"] == "reasoning" else item for item in response["output"]]
    _, after = codex(server, input=[*CODEX["input"], *history, *user("And 3 more?")])
    assert after["usage"]["input_tokens"] > response["usage"]["input_tokens"]
    assert after["usage"]["input_tokens_details"]["cached_tokens"] > 64


@pytest.mark.parametrize("choice, kind, space", [
    ({"type": "custom", "name": "apply_patch"}, "custom_tool_call", None),
    ({"type": "function", "name": "close_agent", "namespace": "multi_agent_v1"}, "function_call", "multi_agent_v1")])
def test_codex_gets_its_calls_as_it_knows_them(server, choice, kind, space):
    for thought in [None, "low"]:
        found, response = codex(server, tool_choice=choice, reasoning={"effort": thought, "summary": "auto"})
        if response["status"] == "incomplete":
            continue
        (call,) = [item for item in response["output"] if item["type"] != "reasoning"]
        assert call["type"] == kind and call["name"] == choice["name"] and call.get("namespace") == space
        field = "input" if kind == "custom_tool_call" else "arguments"
        told = "".join(data["delta"] for name, data in found if name == f"response.{kind}_{field}.delta")
        assert told == call[field] != ""
        if kind == "custom_tool_call":
            assert re.fullmatch(r"\*\*\* Begin Patch\n\*\*\* (Add|Delete) File: .+\n(\+.*\n)*\*\*\* End Patch\n?", told)
        output = {"type": f"{kind}_output", "call_id": call["call_id"], "output": "Success."}
        history = [*CODEX["input"], *response["output"], output]
        _, after = codex(server, tool_choice="none", input=history)
        assert [item["type"] for item in after["output"]] == ["message"]
        break
    else:
        pytest.fail("no call came to its end")


def test_a_carried_thought_is_the_same_prompt(server):
    """Codex drops the readable thought and sends the carried one back: the model, and the cache, must not notice."""
    _, response = codex(server, reasoning={"effort": "low"}, tools=[EXEC_COMMAND])
    (reasoning, *rest) = response["output"]
    assert reasoning["type"] == "reasoning" and rest
    counts = []
    for item in [reasoning, {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}]:
        _, after = codex(server, input=[*CODEX["input"], item, *rest, *user("Thanks.")], tools=[EXEC_COMMAND])
        counts.append(after["usage"]["input_tokens"])
    assert counts[0] == counts[1] > response["usage"]["input_tokens"] + response["usage"]["output_tokens"]


# Claude Code 2.1.197, `claude -p`: its instructions, schemas and descriptions shortened.
BASH = {"name": "Bash", "description": "Executes a given bash command and returns its output.",
        "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
            "command": {"type": "string", "description": "The command to execute"},
            "timeout": {"type": "number", "description": "Optional timeout in milliseconds (max 600000)"},
            "run_in_background": {"type": "boolean"}}, "required": ["command"], "additionalProperties": False}}
CLAUDE_CODE = {
    "model": "hy3-tiny", "max_tokens": 400, "stream": True, "metadata": {"user_id": "{\"device_id\":\"9506e90f\"}"},
    "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.84c; cc_entrypoint=sdk-cli;"},
               {"type": "text", "text": "You are a Claude agent.", "cache_control": {"type": "ephemeral"}},
               {"type": "text", "text": "\nYou are an interactive agent that helps users.",
                "cache_control": {"type": "ephemeral"}}],
    "tools": [BASH],
    "messages": [{"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>\nToday's date is 2026-11-30.\n</system-reminder>\n"},
        {"type": "text", "text": SUM, "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Available agent types for the Agent tool:\n- claude: Catch-all"}]}


def claude(server, **changes):
    """The message of a request as Claude Code makes it, put together from its events."""
    response = httpx.post(server.url + "/v1/messages?beta=true", json={**CLAUDE_CODE, "temperature": 0, **changes},
                          headers={"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"},
                          timeout=120)
    assert response.status_code == 200, response.text
    found = events(response.text)
    assert found[0][0] == "message_start" and [name for name, _ in found[-2:]] == ["message_delta", "message_stop"]
    assert "warnings" not in found[0][1]["message"]
    blocks = []
    for name, data in found:
        if name == "content_block_start":
            assert data["index"] == len(blocks)
            blocks.append({**data["content_block"], "json": ""})
        if name == "content_block_delta":
            kind = data["delta"].pop("type")
            field = {"input_json_delta": "partial_json"}.get(kind, kind.removesuffix("_delta"))
            into = "json" if field == "partial_json" else field
            blocks[data["index"]][into] += data["delta"][field]
    for block in blocks:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    return blocks, {**found[-2][1]["delta"], **found[-2][1]["usage"]}


def test_claude_code_is_understood(server):
    blocks, ending = claude(server)
    assert blocks[0]["type"] == "thinking" and blocks[0]["signature"]
    assert ending["stop_reason"] in ("end_turn", "tool_use", "max_tokens")
    # Another conversation: its own header before the same system prompt does not keep it from the cache.
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.fff; cc_entrypoint=sdk-cli;"}
    _, other = claude(server, system=[header, *CLAUDE_CODE["system"][1:]], max_tokens=1)
    assert other["cache_read_input_tokens"] == ending["input_tokens"] + ending["cache_read_input_tokens"] - 1


def test_claude_code_uses_a_tool(server):
    blocks, ending = claude(server, tool_choice={"type": "tool", "name": "Bash"}, thinking={"type": "disabled"},
                            output_config=None)
    assert ending["stop_reason"] == "tool_use" and blocks[-1]["name"] == "Bash"
    assert set(blocks[-1]["input"]) <= set(BASH["input_schema"]["properties"]) and "command" in blocks[-1]["input"]
    result = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": "42", "is_error": False}
    turns = [*CLAUDE_CODE["messages"], {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    _, after = claude(server, messages=turns)
    assert after["input_tokens"] + after["cache_read_input_tokens"] > ending["cache_read_input_tokens"]


def test_a_message_keeps_its_format(server):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
              "additionalProperties": False}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        for body in [{"output_config": {"format": {"type": "json_schema", "schema": schema}}},
                     {"output_format": {"type": "json_schema", "schema": schema}}]:
            message = client.messages.create(model="hy3-tiny", max_tokens=100,
                                             messages=[{"role": "user", "content": SUM}],
                                             extra_body={"temperature": 0, **body})
            assert set(json.loads(message.content[0].text)) == {"sum"} and message.stop_reason == "end_turn"


def test_both_official_clients_list_models(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        (model,) = client.models.list(limit=1000)
        assert model.id == model.display_name == "hy3-tiny" and model.type == "model" and model.created_at.year > 2000
        assert client.models.retrieve("hy3-tiny").id == "hy3-tiny"
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["hy3-tiny"]


@pytest.mark.parametrize("method, path, nearest", [
    ("POST", "/completion", "POST /v1/completions"), ("POST", "/completions", "POST /v1/completions"),
    ("POST", "/chat/completions", "POST /v1/chat/completions"),
    ("POST", "/v1/v1/chat/completions", "POST /v1/chat/completions"),
    ("POST", "/v1/chat/completions/", "POST /v1/chat/completions"), ("POST", "/v1/chat", "POST /v1/chat/completions"),
    ("POST", "/api/chat", "POST /v1/chat/completions"), ("POST", "/responses", "POST /v1/responses"),
    ("POST", "/openai/deployments/x/chat/completions", "POST /v1/chat/completions"),
    ("GET", "/models", "GET /v1/models"), ("GET", "/healthz", "GET /health"), ("GET", "/health/liveliness", "GET /health"),
    ("POST", "/v1/embeddings", None), ("POST", "/v1/rerank", None), ("POST", "/api/generate", None), ("GET", "/v1", None)])
def test_a_path_that_is_none_names_the_nearest(server, method, path, nearest):
    response = httpx.request(method, server.url + path)
    message = f"{method} {path}: there is no such endpoint" + (f"; the nearest is {nearest}" if nearest else "")
    assert response.status_code == 404
    assert response.json()["error"] == {"message": message, "type": "invalid_request_error", "param": None,
                                        "code": "not_found"}


def test_other_endpoints_of_anthropics_fail_in_its_shape(server):
    response = server.post("/v1/messages/batches", {})
    assert response.status_code == 404 and response.json() == {"type": "error", "error": {
        "type": "not_found_error",
        "message": "POST /v1/messages/batches: there is no such endpoint; the nearest is POST /v1/messages"}}
    response = server.get("/v1/messages")
    assert response.status_code == 405 and response.json()["type"] == "error" and response.headers["allow"] == "POST"


def test_curl_without_a_content_type(server):
    body = json.dumps({"model": "hy3-tiny", "messages": user("Define river."), "temperature": 0})
    for kind in ["application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"]:
        response = httpx.post(server.url + "/v1/chat/completions", content=body, headers={"Content-Type": kind}, timeout=60)
        assert response.json()["choices"][0]["message"]["content"] == "River (noun): a large natural stream of water."


@pytest.mark.parametrize("body, words", [
    ("", "the body is not valid JSON"),
    ("{'messages': []}", "the body is not valid JSON"),
    ('{"messages": [{"role": "user", "content": "Hi",}]}', "the body is not valid JSON"),
    ('[{"role": "user", "content": "Hi"}]', "the body: expected a JSON object, found array"),
    ('{"prompt": "Hi"}', "messages: is missing"),
    ('{"messages": "Hi"}', "messages: expected a list, found string"),
    ('{"messages": ["Hi"]}', "messages[0]: expected an object, found string"),
    ('{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": "100"}', "max_tokens: expected a whole number"),
    ('{"messages": [{"role": "user", "content": "Hi"}], "stream": "true"}', "stream: expected true or false"),
    ('{"messages": [{"role": "user", "content": "Hi"}], "temperature": "0"}', "temperature: expected a number")])
def test_mistakes_are_named(server, body, words):
    response = httpx.post(server.url + "/v1/chat/completions", content=body, timeout=60)
    assert response.status_code == 400 and words in response.json()["error"]["message"]


def test_a_model_of_another_name(server):
    response = server.post("/v1/chat/completions", {"model": "gpt-4o", "messages": user("Hi")})
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "model: `gpt-4o` is not served here, but hy3-tiny is"


def test_a_proxy_that_adds_fields_of_its_own(server):
    """LiteLLM and the like: fields that ask for nothing here are named, not refused."""
    body = {"model": "hy3-tiny", "messages": user("Define river."), "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "user": "me", "metadata": {"a": "b"}, "drop_params": True,
            "service_tier": "auto", "store": False}
    first, *_, last = events_of(server.post("/v1/chat/completions", body).text)
    assert first["warnings"] == ["drop_params"]
    assert last["usage"]["completion_tokens"] > 5
