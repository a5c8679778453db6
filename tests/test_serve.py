"""The HTTP API on hy3-tiny, with the official client."""

import json
import re
import struct

import httpx
import openai
import pytest
from serving import ASK_WEATHER, FILLER, MODEL, WEATHER, events_of, joined, serving, user

@pytest.fixture(scope="module")
def server():
    with serving("--max-body", "4M") as running:
        yield running


def whole_calls(told):
    """Of a stream's calls those that are whole: the arguments of one that was cut are no JSON."""
    whole = []
    for call in told["calls"].values():
        try:
            json.loads(call["arguments"])
        except ValueError:
            continue
        whole.append((call["name"], call["arguments"]))
    return whole


def bits(logprob):
    return struct.pack("<f", logprob)


def test_an_answer_and_all_that_comes_with_it(chat):
    answer = chat("Define river.")
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "River (noun): a large natural stream of water."
    assert choice.finish_reason == "stop"
    assert not hasattr(choice.message, "reasoning_content") and choice.message.tool_calls is None
    assert answer.object == "chat.completion" and answer.model == "hy3-tiny" and answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint.startswith("fp_") and answer.system_fingerprint.endswith("_a1")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert answer.timings["predicted_n"] == usage.completion_tokens > 5
    assert answer.timings["prompt_n"] + answer.timings["cache_n"] == usage.prompt_tokens > 5
    assert not hasattr(answer, "warnings")


@pytest.mark.parametrize("effort", ["low", "high"])
def test_a_thought_is_told_in_its_field(chat, effort):
    answer = chat("What is 27 + 58?", reasoning_effort=effort)
    assert answer.choices[0].message.content == "The answer is 85."
    assert answer.choices[0].message.reasoning_content.strip()
    details = answer.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens < answer.usage.completion_tokens
    off = chat("What is 27 + 58?", reasoning_effort=None,
               extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert off.choices[0].message.content == "The answer is 85."
    assert off.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_call_and_an_answer_from_its_result(chat):
    answer = chat(ASK_WEATHER, tools=WEATHER)
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert call.type == "function" and call.id.startswith("call_") and call.function.name == "get_weather"
    assert call.function.arguments == '{"city": "Tokyo", "days": 3}'
    turns = [*user(ASK_WEATHER), choice.message.model_dump(exclude_none=True),
             {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": -12, "sky": "cloudy"}'}]
    assert chat(turns, tools=WEATHER).choices[0].message.content == "In Tokyo it is -12 degrees with cloudy sky."


def test_a_streamed_call(chat):
    told = joined(chat(ASK_WEATHER, tools=WEATHER, stream=True))[0]
    (call,) = told["calls"].values()
    assert call["name"] == "get_weather" and call["arguments"] == '{"city": "Tokyo", "days": 3}'
    assert told["role"] == "assistant" and told["content"] == "" and told["finish"] == "tool_calls"


PLACES = [*WEATHER, {"type": "function", "function": {
    "name": "get_time", "description": "Get the time in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def test_tool_choices_are_enforced(chat):
    none = chat(ASK_WEATHER, tools=WEATHER, tool_choice="none", max_tokens=60).choices[0].message
    assert none.tool_calls is None and none.content
    for choice, names in [("required", {"get_weather", "get_time"}),
                          ({"type": "function", "function": {"name": "get_time"}}, {"get_time"})]:
        for options in [{}, {"temperature": 1, "seed": 3}]:
            answer = chat("Define river.", tools=PLACES, tool_choice=choice, parallel_tool_calls=False,
                          reasoning_effort="high", max_tokens=400, **options)
            (call,) = answer.choices[0].message.tool_calls
            assert call.function.name in names and "city" in json.loads(call.function.arguments)
            assert answer.choices[0].finish_reason == "tool_calls"


def test_formats_are_enforced(chat):
    schema = {"type": "object", "properties": {"word": {"enum": ["river", "lake"]}, "count": {"type": "integer",
              "minimum": 1, "maximum": 9}}, "required": ["word", "count"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": schema}}
    for options in [{"reasoning_effort": "none"}, {"reasoning_effort": "high"}, {"tools": WEATHER, "tool_choice": "none"}]:
        answer = chat("Define river.", response_format=wanted, temperature=1, seed=5, n=4, max_tokens=600, **options)
        for choice in answer.choices:
            value = json.loads(choice.message.content)
            assert set(value) == {"word", "count"} and value["word"] in ("river", "lake") and 1 <= value["count"] <= 9
            assert choice.finish_reason == "stop"
    choice = chat("Define river.", extra_body={"structured_outputs": {"choice": ["yes", "no"]}}).choices[0]
    assert choice.message.content in ("yes", "no")
    budget = chat("What is 355 plus 570?", reasoning_effort="high", extra_body={"thinking_token_budget": 4})
    assert budget.usage.completion_tokens_details.reasoning_tokens <= 5
    with pytest.raises(openai.BadRequestError) as caught:
        chat("x", tool_choice="required")
    assert caught.value.param == "tool_choice" and "needs tools" in caught.value.message


@pytest.mark.parametrize("case", ["text", "thought", "call"])
def test_stream_and_whole_agree_at_every_length(chat, case, full):
    question, options = {"text": ("Define winter.", {}), "thought": ("What is 9 + 8?", {"reasoning_effort": "high"}),
                         "call": (ASK_WEATHER, {"tools": WEATHER})}[case]
    length = chat(question, **options).usage.completion_tokens
    for most in range(1, length + 1):
        whole = chat(question, max_tokens=most, **options)
        chunks = list(chat(question, max_tokens=most, stream=True, stream_options={"include_usage": True}, **options))
        told, message = joined(chunks)[0], whole.choices[0].message
        assert told["finish"] == whole.choices[0].finish_reason
        assert told["content"] == (message.content or "")
        assert told["reasoning"] == getattr(message, "reasoning_content", "")
        assert whole_calls(told) == [(c.function.name, c.function.arguments) for c in message.tool_calls or []]
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == most
        assert whole.choices[0].finish_reason == ("length" if most < length else told["finish"])
        assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_a_cached_prefix_changes_nothing(chat):
    text = "Remember this. " + FILLER * 4
    asked = [*user(text + "Define island."), {"role": "assistant", "content": "Island."}, *user("Define money.")]
    first = chat(asked, logprobs=True, top_logprobs=3)
    second = chat(asked, logprobs=True, top_logprobs=3)
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens_details.cached_tokens
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1
    assert first.choices[0].logprobs == second.choices[0].logprobs
    other = chat([*asked[:2], *user("Define teacher.")])
    assert 64 <= other.usage.prompt_tokens_details.cached_tokens < other.usage.prompt_tokens - 1


def test_choices_have_seeds_of_their_own(chat):
    answer = chat("Define doctor.", n=3, seed=7, logprobs=True, temperature=1)
    assert [c.index for c in answer.choices] == [0, 1, 2] and answer.seed == 7
    for choice in answer.choices:
        alone = chat("Define doctor.", seed=7 + choice.index, logprobs=True, temperature=1)
        assert alone.choices[0].message.content == choice.message.content
        assert alone.choices[0].logprobs == choice.logprobs
    told = joined(chat("Define doctor.", n=3, seed=7, stream=True, temperature=1))
    assert [told[i]["content"] for i in range(3)] == [c.message.content for c in answer.choices]


def test_logprobs_of_whole_and_stream(chat):
    whole = chat("Define money.", logprobs=True, top_logprobs=4).choices[0]
    told = joined(chat("Define money.", logprobs=True, top_logprobs=4, stream=True))[0]
    assert told["logprobs"] == whole.logprobs.content
    assert "".join(t.token for t in told["logprobs"]) == whole.message.content
    for token in whole.logprobs.content:
        assert bytes(token.bytes).decode() == token.token
        assert len(token.top_logprobs) == 4 and token.top_logprobs[0].logprob == token.logprob <= 0
        assert struct.unpack("<f", bits(token.logprob))[0] == pytest.approx(token.logprob, rel=1e-6)


def test_what_ends_an_answer(chat):
    stopped = chat("Define river.", stop=["natural", "zebra"])
    assert stopped.choices[0].message.content == "River (noun): a large "
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].stop_reason == "natural"
    told = joined(chat("Define river.", stop="natural", stream=True))[0]
    assert told["content"] == "River (noun): a large " and told["finish"] == "stop"
    (token,) = [t for t in chat("Define river.", logprobs=True).choices[0].logprobs.content if t.token == " large"]
    by_id = chat("Define river.", extra_body={"stop_token_ids": [token.id]})
    assert by_id.choices[0].message.content == "River (noun): a" and by_id.choices[0].stop_reason == token.id
    assert chat("Define river.", max_completion_tokens=3).choices[0].finish_reason == "length"
    longer = chat("Define river.", max_tokens=40, extra_body={"ignore_eos": True})
    assert longer.usage.completion_tokens == 40 and longer.choices[0].finish_reason == "length"
    biased = chat("Define river.", logit_bias={str(token.id): -100})
    assert " large" not in biased.choices[0].message.content


def test_ignored_fields_are_named(chat, server):
    answer = chat("Define river.", extra_body={"mirostat": 2, "dry_multiplier": 0.8, "user": "somebody"})
    assert answer.warnings == ["mirostat", "dry_multiplier"]
    body = {"messages": user("Define river."), "mirostat": 2, "stream": True, "max_tokens": 1}
    assert events_of(server.post("/v1/chat/completions", body).text)[0]["warnings"] == ["mirostat"]


BAD = {
    "wrong type": ({"temperature": "hot"}, "temperature", "temperature: expected a number, found \"hot\""),
    "out of range": ({"temperature": -1}, "temperature", "temperature must be"),
    "fraction": ({"max_tokens": 1.5}, "max_tokens", "max_tokens: expected a whole number"),
    "no messages": ({"messages": []}, "messages", "messages: expected at least one, found none"),
    "missing messages": ({"messages": None}, "messages", "messages: expected a list"),
    "unknown role": ({"messages": [{"role": "wizard", "content": "x"}]}, "messages", "messages[0].role: expected"),
    "image": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
              "messages", "only parts of type \"text\" are supported"),
    "effort": ({"reasoning_effort": "extreme"}, "reasoning_effort", "reasoning_effort: expected one of"),
    "tools": ({"tools": [{"type": "function"}]}, "tools", "tools[0].function: expected an object"),
    "stop": ({"stop": [1]}, "stop", "stop: expected a string or a list of strings"),
    "bias": ({"logit_bias": {"river": 1}}, "logit_bias", "logit_bias: expected token ids with numbers"),
    "n": ({"n": 0}, "n", "n: expected a whole number from 1 to 128, found 0"),
    "top": ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: needs `logprobs` to be true"),
    "stream": ({"stream": "yes"}, "stream", "stream: expected true or false"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests(server, case):
    fields, param, message = BAD[case]
    response = server.post("/v1/chat/completions", {"messages": user("x"), **fields})
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert message in error["message"] and error["param"] == param


PROTOCOLS = {  # path, and a request for a text
    "chat": ("/v1/chat/completions", lambda text: {"messages": user(text)}),
    "completion": ("/v1/completions", lambda text: {"prompt": text}),
    "response": ("/v1/responses", lambda text: {"input": text}),
    "message": ("/v1/messages", lambda text: {"messages": user(text), "max_tokens": 1}),
}
IMAGES = {"chat": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
          "response": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
          "message": {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}],
                      "max_tokens": 1}}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_refuses_and_warns_alike(server, protocol):
    path, request = PROTOCOLS[protocol]

    def refused(body):
        response = server.post(path, body)
        error = response.json()["error"]
        assert response.status_code == 400 and error["type"] == "invalid_request_error"
        assert protocol == "message" or set(error) == {"message", "type", "param", "code"}
        assert protocol != "message" or response.json()["type"] == "error"
        return error

    error = refused(request(FILLER * 900))
    assert "32768 tokens" in error["message"] and re.search(r"your prompt has \d{5} tokens", error["message"])
    assert protocol == "message" or error["code"] == "context_length_exceeded"
    assert "temperature: expected a number" in refused({**request("x"), "temperature": "hot"})["message"]
    assert "expected" in refused({**request("x"), next(iter(request("x"))): []})["message"] or protocol == "completion"
    broken = httpx.post(server.url + path, content=b'{"messages": [')
    assert broken.status_code == 400 and "not valid JSON" in broken.json()["error"]["message"]
    if protocol in IMAGES:
        assert "image" in refused(IMAGES[protocol])["message"]
    answer = server.post(path, {**request("Define river."), "mirostat": 2, "dry_base": 1}).json()
    assert answer["warnings"] == ["mirostat", "dry_base"]


def test_prompts_that_are_too_long_name_both_numbers(chat):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(FILLER * 900)
    assert caught.value.code == "context_length_exceeded"
    assert "32768 tokens" in caught.value.message and caught.value.param == "messages"


def test_bodies_that_are_none(server):
    for content, word in [(b"{", "not valid JSON"), (b"[]", "expected a JSON object"), (b"", "not valid JSON"),
                          (b"\xff\xfe", "not valid JSON"), (b"[" * 100000, "not valid JSON")]:
        response = httpx.post(server.url + "/v1/chat/completions", content=content)
        assert response.status_code == 400 and word in response.json()["error"]["message"]


def test_unknown_models_and_endpoints(server):
    response = server.post("/v1/chat/completions", {"model": "gpt-9", "messages": user("x")})
    assert response.status_code == 404 and response.json()["error"]["code"] == "model_not_found"
    response = server.get("/v1/nothing")
    assert response.status_code == 404 and "there is no such endpoint" in response.json()["error"]["message"]
    response = server.get("/v1/chat/completions")
    assert response.status_code == 405 and response.headers["allow"] == "POST"


def test_completions(client):
    answer = client.completions.create(model="hy3-tiny", prompt="A river is", max_tokens=8, temperature=0, logprobs=2)
    (choice,) = answer.choices
    assert answer.object == "text_completion" and answer.usage.completion_tokens == 8
    assert "".join(choice.logprobs.tokens) == choice.text and choice.finish_reason == "length"
    assert choice.logprobs.text_offset[0] == 0 and len(choice.logprobs.top_logprobs[0]) == 2
    pieces = list(client.completions.create(model="hy3-tiny", prompt="A river is", max_tokens=8, temperature=0,
                                            stream=True))
    assert "".join(p.choices[0].text for p in pieces if p.choices) == choice.text
    held = client.completions.create(model="hy3-tiny", prompt="A river is", temperature=1, seed=1, n=3,
                                     extra_body={"structured_outputs": {"regex": "[a-c]{4}[0-9]"}})
    assert all(re.fullmatch("[a-c]{4}[0-9]", c.text) and c.finish_reason == "stop" for c in held.choices)


def test_echo_gives_the_prompt_its_log_probabilities(client, server):
    drawn = client.completions.create(model="hy3-tiny", prompt="A river is", max_tokens=6, temperature=0, logprobs=1,
                                      echo=True).choices[0]
    assert drawn.text.startswith("A river is") and drawn.logprobs.token_logprobs[0] is None
    assert drawn.logprobs.top_logprobs[0] is None and "".join(drawn.logprobs.tokens) == drawn.text
    for token, offset in zip(drawn.logprobs.tokens, drawn.logprobs.text_offset):
        assert drawn.text[offset:offset + len(token)] == token
    # The same tokens as a prompt: what was drawn with these bits is now read with these bits.
    ids = server.post("/tokenize", {"content": drawn.text}).json()["tokens"]
    read = client.completions.create(model="hy3-tiny", prompt=[ids], max_tokens=0, temperature=0, logprobs=1,
                                     echo=True).choices[0]
    assert read.text == drawn.text and read.logprobs.token_logprobs == drawn.logprobs.token_logprobs
    wanted = {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 2, "temperature": 0}
    listed = server.post("/v1/completions", wanted).json()["choices"][0]["prompt_logprobs"]
    assert listed[0] is None
    assert [entry[str(i)]["logprob"] for entry, i in zip(listed[1:], ids[1:])] == read.logprobs.token_logprobs[1:]


def test_log_probabilities_of_prompts_are_bounded(server):
    body = {"prompt": [[5] * 4000], "max_tokens": 0, "prompt_logprobs": 128}
    refused = server.post("/v1/completions", body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt_logprobs"
    assert "512000 log-probabilities of prompts are wanted at once, at most 262144" in refused.json()["error"]["message"]
    told = server.post("/v1/completions", body | {"prompt_logprobs": 20}).json()["choices"][0]["prompt_logprobs"]
    assert len(told) == 4000 and told[0] is None and len(told[1]) in (20, 21)


def test_several_prompts(client, server):
    prompts = ["A river is", "Winter is", "Money is"]
    together = client.completions.create(model="hy3-tiny", prompt=prompts, max_tokens=5, temperature=0, n=2)
    assert [c.index for c in together.choices] == list(range(6))
    for i, prompt in enumerate(prompts):
        alone = client.completions.create(model="hy3-tiny", prompt=prompt, max_tokens=5, temperature=0)
        assert together.choices[2 * i].text == together.choices[2 * i + 1].text == alone.choices[0].text
    for prompt, word in [([], "empty list"), ("", "without tokens"), ([[1], []], "expected a text"), (5, "expected a text"),
                         ([99999999], "not in the vocabulary"), ([[1, "a"]], "expected a text")]:
        response = server.post("/v1/completions", {"prompt": prompt})
        assert response.status_code == 400 and word in response.json()["error"]["message"], prompt


def test_models_and_tokens(client, server):
    (model,) = client.models.list().data
    assert model.id == "hy3-tiny" and model.max_model_len == 32768
    assert client.models.retrieve("hy3-tiny").id == "hy3-tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    tokens = server.post("/tokenize", {"content": "A river is wide."}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json()["content"] == "A river is wide."
    pieces = server.post("/tokenize", {"prompt": "A river", "with_pieces": True}).json()["tokens"]
    assert "".join(p["piece"] for p in pieces) == "A river"
    prompt = server.post("/apply-template", {"messages": user("Hi")}).json()["prompt"]
    assert server.post("/tokenize", {"messages": user("Hi")}).json()["tokens"] == \
        server.post("/tokenize", {"content": prompt}).json()["tokens"]
    assert "not in the vocabulary" in server.post("/detokenize", {"tokens": [10**9]}).json()["error"]["message"]
    assert "is missing" in server.post("/tokenize", {}).json()["error"]["message"]


def test_kl_from_uploaded_log_probabilities(server):
    ids = server.post("/tokenize", {"messages": user("Define river.")}).json()["tokens"]
    wanted = {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 8, "temperature": 0, "logprobs": 8}
    choice = server.post("/v1/completions", wanted).json()["choices"][0]
    rows = [sorted(((e["logprob"], int(i)) for i, e in entry.items() if e["rank"]), reverse=True)
            for entry in choice["prompt_logprobs"][1:]]
    rows.append(rows[-1])  # what follows the prompt: another position's, so that something differs
    body = {"tokens": ids, "ids": [[i for _, i in row] for row in rows], "logprobs": [[p for p, _ in row] for row in rows]}
    kl = server.post("/v1/kl", body).json()
    assert kl["positions"] == len(ids) and abs(kl["median"]) < 1e-6 < kl["maximum"]
    assert kl["top1_equal"] >= len(ids) - 1
    wrong = server.post("/v1/kl", {**body, "ids": body["ids"][1:]})
    assert wrong.status_code == 400 and "one for each token" in wrong.json()["error"]["message"]
    wrong = server.post("/v1/kl", {**body, "logprobs": [[1.0] * 8] * len(ids)})
    assert wrong.status_code == 400 and "expected logarithms of probabilities" in wrong.json()["error"]["message"]


def test_metrics_are_sums(server):
    before = {name: server.metric(name) for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total",
                                                      "llamacpp:tokens_predicted_total",
                                                      "vllm:time_to_first_token_seconds_count")}
    usages = [server.post("/v1/chat/completions", {"messages": user(f"Define {word}."), "temperature": 0}).json()["usage"]
              for word in ("river", "island", "winter")]
    drawn = sum(u["completion_tokens"] for u in usages)
    assert server.metric("vllm:prompt_tokens_total") - before["vllm:prompt_tokens_total"] == \
        sum(u["prompt_tokens"] for u in usages)
    assert server.metric("vllm:generation_tokens_total") - before["vllm:generation_tokens_total"] == drawn
    assert server.metric("llamacpp:tokens_predicted_total") - before["llamacpp:tokens_predicted_total"] == drawn
    assert server.metric("vllm:time_to_first_token_seconds_count") - \
        before["vllm:time_to_first_token_seconds_count"] == 3
    assert server.metric("vllm:num_requests_running") == 0 == server.metric("vllm:num_requests_waiting")


def test_state(server):
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").json() == {"status": "ready"}
    props = server.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 32768 and props["model_path"] == str(MODEL)
    assert "text/html" in server.get("/").headers["content-type"]


def test_progress_comments_come_before_the_answer(server):
    body = {"messages": user("Not cached. " + FILLER * 40 + "Define sea."), "stream": True, "max_tokens": 1}
    text = server.post("/v1/chat/completions", body).text
    comments = [line for line in text.split("\n") if line.startswith(": prompt ")]
    done = [int(c.split()[2].split("/")[0]) for c in comments]
    assert len(done) >= 2 and done == sorted(done)
    assert text.index(comments[-1]) < text.index('"finish_reason": "length"')
