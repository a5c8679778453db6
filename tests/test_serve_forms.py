"""What holds answers to a form: tool choices, formats and grammars, with thoughts, with tools, in streams, among free
requests. And every sampling field has its effect."""

import asyncio
import json
import re
from functools import partial

import anthropic
import httpx
import openai
import pytest
from serving import ASK_WEATHER, WEATHER, joined, user

PLACES = [*WEATHER, {"type": "function", "function": {
    "name": "get_time", "description": "Get the time in a city.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "hours": {"type": "integer"}},
                   "required": ["city"], "additionalProperties": False}}}]
NAMED = {"type": "function", "function": {"name": "get_time"}}
WORD = {"type": "object", "properties": {"word": {"enum": ["river", "lake"]}, "count": {"type": "integer", "minimum": 1,
        "maximum": 9}}, "required": ["word", "count"], "additionalProperties": False}
WORD_FORMAT = {"type": "json_schema", "json_schema": {"name": "word", "strict": True, "schema": WORD}}


@pytest.fixture(scope="module")
def chat(chat):
    return partial(chat, max_tokens=500)


def is_word(text):
    value = json.loads(text)
    return set(value) == {"word", "count"} and value["word"] in ("river", "lake") and 1 <= value["count"] <= 9


def test_tool_choices_bind_after_the_thought(chat):
    free = chat(ASK_WEATHER, tools=PLACES, reasoning_effort="high").choices[0].message
    assert free.reasoning_content
    for choice, names in [("required", ["get_weather", "get_time"]), (NAMED, ["get_time"]), ("none", []), ("auto", None)]:
        for seed in [None, 1, 2]:
            options = {} if seed is None else {"temperature": 1, "seed": seed}
            asked = {"tools": PLACES, "tool_choice": choice, "reasoning_effort": "high", **options}
            answer = chat(ASK_WEATHER, **asked).choices[0]
            message = answer.message
            if seed is None:
                assert message.reasoning_content == free.reasoning_content, "a thought is nobody's form"
            if names == []:
                assert message.tool_calls is None and message.content
            elif names is not None and answer.finish_reason != "length":
                assert message.tool_calls and answer.finish_reason == "tool_calls" and not message.content
            for call in message.tool_calls or []:
                arguments = json.loads(call.function.arguments)
                assert names is None or call.function.name in names
                if call.function.name == "get_time":
                    assert arguments["city"] in ("Oslo", "Rome") and set(arguments) <= {"city", "hours"}
                else:
                    assert isinstance(arguments["city"], str) and isinstance(arguments.get("days", 0), int)
            told = joined(chat(ASK_WEATHER, **asked, stream=True))[0]
            assert (told["content"], told["reasoning"], told["finish"]) == (
                message.content or "", message.reasoning_content, answer.finish_reason)
            if answer.finish_reason == "tool_calls":
                assert [(c["name"], c["arguments"]) for c in told["calls"].values()] == [
                    (c.function.name, c.function.arguments) for c in message.tool_calls]


def test_one_call_where_only_one_is_wanted(chat):
    question = "What is the weather in Tokyo and Paris?"
    for choice in ["auto", "required"]:
        for seed in range(4):
            message = chat(question, tools=WEATHER, tool_choice=choice, parallel_tool_calls=False, temperature=1,
                           seed=seed).choices[0].message
            assert len(message.tool_calls or []) == 1
    assert len(chat(question, tools=WEATHER, tool_choice="required").choices[0].message.tool_calls) == 2


@pytest.mark.parametrize("options", [{}, {"reasoning_effort": "high"}, {"tools": WEATHER},
                                     {"tools": WEATHER, "tool_choice": "none"},
                                     {"tools": WEATHER, "reasoning_effort": "low"}])
def test_a_schema_binds_after_the_thought_with_tools_or_without(chat, options):
    free = chat("Define river.", **options).choices[0].message
    for seed in [None, 3, 4]:
        drawn = {} if seed is None else {"temperature": 1, "seed": seed}
        answer = chat("Define river.", response_format=WORD_FORMAT, **options, **drawn).choices[0]
        told = joined(chat("Define river.", response_format=WORD_FORMAT, stream=True, **options, **drawn))[0]
        assert told["content"] == (answer.message.content or "") and told["finish"] == answer.finish_reason
        if seed is None:
            assert getattr(answer.message, "reasoning_content", None) == getattr(free, "reasoning_content", None)
        if answer.finish_reason == "stop":
            assert is_word(answer.message.content)
        else:
            assert answer.finish_reason == "tool_calls" or "reasoning_effort" in options
    if "tools" in options and options.get("tool_choice") != "none":  # calls stay possible
        called = chat(ASK_WEATHER, response_format=WORD_FORMAT, **options).choices[0]
        assert called.finish_reason == "tool_calls" or is_word(called.message.content)


def test_every_kind_of_format(chat):
    text = chat("Define river.", response_format={"type": "text"}).choices[0].message.content
    assert text == chat("Define river.").choices[0].message.content
    for seed in range(3):
        drawn = {"temperature": 1, "seed": seed, "max_tokens": 60}
        answer = chat("Define river.", response_format={"type": "json_object"}, **drawn).choices[0]
        assert answer.message.content.lstrip().startswith("{")
        assert answer.finish_reason == "length" or isinstance(json.loads(answer.message.content), dict)
        forms = [({"regex": "[0-9]{3}-[a-f]{2}"}, lambda t: re.fullmatch("[0-9]{3}-[a-f]{2}", t)),
                 ({"choice": ["yes", "no", "perhaps"]}, ["yes", "no", "perhaps"].__contains__),
                 ({"json": WORD}, is_word),
                 ({"grammar": 'start: "a" NUMBER ("b" | "c")\nNUMBER: /[0-9]{2}/'},
                  lambda t: re.fullmatch("a[0-9]{2}[bc]", t))]
        for form, fits in forms:
            for effort in ["none", "low"]:
                bound = chat("Define river.", extra_body={"structured_outputs": form}, reasoning_effort=effort,
                             temperature=1, seed=seed).choices[0]
                assert bound.finish_reason == "length" or fits(bound.message.content), (form, bound.message.content)
                assert bound.finish_reason == "stop" or effort == "low"


def test_formats_among_free_requests(server):
    """Nobody's form touches another's answer: all at once give the bits that each gives alone."""
    forms = [{}, {"response_format": WORD_FORMAT}, {}, {"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"}}, {},
             {"tools": PLACES, "tool_choice": NAMED}, {}, {"tools": WEATHER, "parallel_tool_calls": False},
             {"structured_outputs": {"choice": ["yes", "no"]}}, {"reasoning_effort": "low"},
             {"reasoning_effort": "low", "response_format": WORD_FORMAT},
             {"reasoning_effort": "high", "thinking_token_budget": 5}]
    bodies = [{"messages": user("Define lake."), "temperature": 1, "seed": i, "logprobs": True, "top_logprobs": 2,
               "max_tokens": 200, "reasoning_effort": "none", **form} for i, form in enumerate(forms)]

    async def together():
        async with httpx.AsyncClient(timeout=300) as client:
            return await asyncio.gather(*[client.post(server.url + "/v1/chat/completions", json=b) for b in bodies])

    at_once = [response.json()["choices"][0] for response in asyncio.run(together())]
    for body, one in zip(bodies, at_once):
        alone = server.post("/v1/chat/completions", body).json()["choices"][0]
        for choice in (one, alone):
            for call in choice["message"].get("tool_calls", []):
                call.pop("id")
        assert one == alone
    assert is_word(at_once[1]["message"]["content"]) and at_once[8]["message"]["content"] in ("yes", "no")


def test_thoughts_have_a_limit(chat):
    def think(**body):
        return chat("What is 355 plus 570?", reasoning_effort="high", extra_body=body)

    free = think()
    length = free.usage.completion_tokens_details.reasoning_tokens
    for budget in [1, 2, 5, length // 2]:
        answer = think(thinking_token_budget=budget)
        assert answer.usage.completion_tokens_details.reasoning_tokens <= budget + 1 < length
        assert free.choices[0].message.reasoning_content.startswith(
            getattr(answer.choices[0].message, "reasoning_content", ""))
        assert answer.choices[0].finish_reason == "stop" and answer.choices[0].message.content
    assert think(thinking_token_budget=length + 5).choices[0].message == free.choices[0].message


def test_tool_choices_of_other_protocols(server):
    tool = {"name": "get_weather", "input_schema": WEATHER[0]["function"]["parameters"]}
    time = {"name": "get_time", "input_schema": PLACES[1]["function"]["parameters"]}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        for choice, names in [({"type": "any"}, {"get_weather", "get_time"}), ({"type": "none"}, set()),
                              ({"type": "tool", "name": "get_time", "disable_parallel_tool_use": True}, {"get_time"})]:
            message = client.messages.create(model="hy3-tiny", max_tokens=300, messages=user(ASK_WEATHER),
                                             tools=[tool, time], tool_choice=choice, extra_body={"temperature": 0})
            used = [block.name for block in message.content if block.type == "tool_use"]
            assert set(used) <= names and bool(used) == bool(names)
            assert message.stop_reason == ("tool_use" if names else "end_turn")
            assert len(used) == 1 or "disable_parallel_tool_use" not in choice
    functions = [{"type": "function", "strict": False, **place["function"]} for place in PLACES]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for choice, names in [("required", {"get_weather", "get_time"}), ("none", set()),
                              ({"type": "function", "name": "get_time"}, {"get_time"})]:
            response = client.responses.create(model="hy3-tiny", input=ASK_WEATHER, tools=functions, temperature=0,
                                               tool_choice=choice, parallel_tool_calls=False, max_output_tokens=300)
            called = [item.name for item in response.output if item.type == "function_call"]
            assert set(called) <= names and len(called) == min(1, len(names)) and response.status == "completed"


def test_sampling_fields_have_their_effect(chat):
    def ids(**options):
        choice = chat("Define money.", logprobs=True, **options).choices[0]
        return [token.id for token in choice.logprobs.content]

    greedy = ids()
    for only_the_best in [{"extra_body": {"top_k": 1}}, {"top_p": 1e-6}, {"extra_body": {"min_p": 1}}]:
        for seed in range(3):
            assert ids(temperature=2, seed=seed, **only_the_best) == greedy
    drawn = [ids(temperature=2, seed=seed, max_tokens=20) for seed in range(8)]
    assert len({tuple(one) for one in drawn}) > 2 and ids(temperature=2, seed=7, max_tokens=20) == drawn[7]
    long = {"ignore_eos": True}
    plain = ids(max_tokens=80, extra_body=long)
    for fields in [{"extra_body": {**long, "repetition_penalty": 1.5}}, {"presence_penalty": 2, "extra_body": long},
                   {"frequency_penalty": 2, "extra_body": long}]:
        assert len(set(ids(max_tokens=80, **fields))) > len(set(plain))
    assert chat("Define money.", extra_body={"min_tokens": 40}).usage.completion_tokens >= 40 > len(greedy) + 1


def test_ends_that_are_ignored_come_again(server):
    """A form is at its end, nothing else fits, and still the answer goes on."""
    body = {"prompt": "a", "max_tokens": 12, "ignore_eos": True, "structured_outputs": {"choice": ["a"]}}
    answer = server.post("/v1/completions", body).json()
    assert answer["choices"][0]["text"] == "a" and answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12


def test_what_a_grammar_may_cost(server):
    """Thirty rules that double, and a regular expression without an end: one clear error, and soon."""
    doubling = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(30)) + 'A30: "x"\n'
    for body, said in [({"structured_outputs": {"grammar": doubling}}, "structured_outputs.grammar: "),
                       ({"response_format": {"type": "json_schema", "json_schema": {
                           "name": "x", "schema": {"type": "string", "pattern": "("}}}}, "unclosed group")]:
        response = server.post("/v1/chat/completions", {"messages": user("Hi"), **body})
        assert response.status_code == 400 and said in response.json()["error"]["message"], response.text


def test_bounds_of_what_is_held(server):
    message = {"messages": user("Hi"), "logprobs": True, "top_logprobs": 127, "n": 2}
    response = server.post("/v1/chat/completions", {**message, "max_tokens": 1025})
    assert response.status_code == 400 and response.json()["error"]["param"] == "top_logprobs"
    assert "262400 log-probabilities are wanted at once, at most 262144 may be" in response.json()["error"]["message"]
    assert server.post("/v1/chat/completions", {**message, "max_tokens": 2}).status_code == 200
    many = {"messages": user("Hi"), "chat_template_kwargs": {f"k{i}": i for i in range(257)}}
    response = server.post("/v1/chat/completions", many)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "chat_template_kwargs: at most 256 are supported, found 257"
