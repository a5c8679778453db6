"""The official clients' own ways to ask, on hy3-tiny: synchronous, asynchronous, their streaming helpers, their parsed
answers. What each gives is what a plain request gives."""

import asyncio
import json
from typing import Literal

import anthropic
import openai
import pydantic
import pytest
from serving import ASK_WEATHER, WEATHER, joined, user

SUM = "What is 27 + 58?"
NOTHING = openai.omit
CHATS = {"text": ("Define winter.", {"reasoning_effort": "none"}),
         "thought": ("What is 9 + 8?", {"reasoning_effort": "high"}),
         "call": (ASK_WEATHER, {"reasoning_effort": "none", "tools": WEATHER})}
TOOL = {"name": "get_weather", "description": "Get the weather for a city.",
        "input_schema": WEATHER[0]["function"]["parameters"]}
FUNCTION = {"type": "function", "strict": False, **WEATHER[0]["function"]}
RESPONSES = {"text": ("Define winter.", {}), "thought": ("What is 9 + 8?", {"reasoning": {"effort": "high"}}),
             "call": (ASK_WEATHER, {"tools": [FUNCTION]})}
MESSAGES = {"text": ("Define winter.", {}),
            "thought": ("What is 9 + 8?", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            "call": (ASK_WEATHER, {"tools": [TOOL]})}


class Word(pydantic.BaseModel):
    word: Literal["river", "lake"]
    count: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def asynchronous(server, ask):
    """What ask(OpenAI client, Anthropic client) returns."""

    async def run():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as ours, \
                anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as theirs:
            return await ask(ours, theirs)

    return asyncio.run(run())


def chat_of(case, **options):
    question, own = CHATS[case]
    return {"model": "hy3-tiny", "messages": user(question), "temperature": 0, **own, **options}


def response_of(case, **options):
    question, own = RESPONSES[case]
    return {"model": "hy3-tiny", "input": question, "temperature": 0, **own, **options}


def message_of(case, **options):
    question, own = MESSAGES[case]
    return {"model": "hy3-tiny", "messages": user(question), "max_tokens": 2000,
            "extra_body": {"temperature": 0}, **own, **options}


def told_chat(message):
    """What an answer says, whichever way it was asked for."""
    return (message.content or "", getattr(message, "reasoning_content", None) or "",
            [(call.function.name, call.function.arguments) for call in message.tool_calls or []])


def told_response(response):
    return [{"reasoning": lambda item: item.content[0].text, "message": lambda item: item.content[0].text,
             "function_call": lambda item: (item.name, item.arguments)}[item.type](item) for item in response.output]


def told_message(message):
    return [block.model_dump(exclude={"id"}) for block in message.content], message.stop_reason, message.stop_sequence


@pytest.mark.parametrize("case", CHATS)
def test_chats_by_every_way(server, client, case):
    whole = client.chat.completions.create(**chat_of(case)).choices[0]
    with client.chat.completions.stream(**chat_of(case)) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert told_chat(final.message) == told_chat(whole.message) and final.finish_reason == whole.finish_reason
    assert "".join(e.delta for e in events if e.type == "content.delta") == (whole.message.content or "")
    assert [e.arguments for e in events if e.type == "tool_calls.function.arguments.done"] == [
        call.function.arguments for call in whole.message.tool_calls or []]
    raw = client.chat.completions.with_raw_response.create(**chat_of(case))
    assert raw.headers["x-request-id"] and told_chat(raw.parse().choices[0].message) == told_chat(whole.message)

    async def ask(ours, _):
        created, chunks = await asyncio.gather(ours.chat.completions.create(**chat_of(case)),
                                               ours.chat.completions.create(**chat_of(case, stream=True)))
        pieces = [chunk async for chunk in chunks]
        async with ours.chat.completions.stream(**chat_of(case)) as helper:
            return created, pieces, await helper.get_final_completion()

    created, pieces, helped = asynchronous(server, ask)
    assert told_chat(created.choices[0].message) == told_chat(helped.choices[0].message) == told_chat(whole.message)
    told = joined(pieces)[0]
    assert (told["content"], told["reasoning"], [(c["name"], c["arguments"]) for c in told["calls"].values()]) == \
        told_chat(whole.message)


@pytest.mark.parametrize("case", RESPONSES)
def test_responses_by_every_way(server, client, case):
    whole = client.responses.create(**response_of(case))
    with client.responses.stream(**response_of(case)) as stream:
        list(stream)
        assert told_response(stream.get_final_response()) == told_response(whole)
    events = list(client.responses.create(**response_of(case, stream=True)))
    assert events[-1].type == "response.completed" and told_response(events[-1].response) == told_response(whole)

    async def ask(ours, _):
        created = await ours.responses.create(**response_of(case))
        async with ours.responses.stream(**response_of(case)) as helper:
            return created, await helper.get_final_response()

    for other in asynchronous(server, ask):
        assert told_response(other) == told_response(whole)


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_by_every_way(server, claude, case):
    whole = claude.messages.create(**message_of(case))
    with claude.messages.stream(**message_of(case)) as stream:
        text = "".join(stream.text_stream)
        assert told_message(stream.get_final_message()) == told_message(whole)
    assert text == "".join(block.text for block in whole.content if block.type == "text")
    with claude.messages.stream(**message_of(case)) as stream:
        events = list(stream)
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    inputs = [e.snapshot for e in events if e.type == "input_json"]
    assert inputs[-1:] == [block.input for block in whole.content if block.type == "tool_use"]

    async def ask(_, theirs):
        created = await theirs.messages.create(**message_of(case))
        async with theirs.messages.stream(**message_of(case)) as helper:
            final = await helper.get_final_message()
        counted = await theirs.messages.count_tokens(**{name: value for name, value in message_of(case).items()
                                                       if name not in ("max_tokens", "extra_body")})
        return created, final, counted

    created, final, counted = asynchronous(server, ask)
    assert told_message(created) == told_message(final) == told_message(whole)
    assert counted.input_tokens == created.usage.input_tokens + created.usage.cache_read_input_tokens


def test_parsed_answers(server, client):
    def is_word(parsed):
        return isinstance(parsed, Word) and parsed.word in ("river", "lake") and parsed.count in (1, 2, 3)

    for effort in ("none", "low"):
        asked = {"model": "hy3-tiny", "messages": user("Define river."), "response_format": Word, "temperature": 0,
                 "reasoning_effort": effort}
        parsed = client.chat.completions.parse(**asked).choices[0].message
        assert is_word(parsed.parsed) and bool(getattr(parsed, "reasoning_content", "")) == (effort == "low")
        with client.chat.completions.stream(**asked) as stream:
            done = [event.parsed for event in stream if event.type == "content.done"]
        assert done == [parsed.parsed]
    tell = openai.pydantic_function_tool(Word, name="tell", description="Tell a word.")
    message = client.chat.completions.parse(model="hy3-tiny", messages=user("Define river."), tools=[tell], temperature=0,
                                            tool_choice="required").choices[0].message
    assert is_word(message.tool_calls[0].function.parsed_arguments)
    response = client.responses.parse(model="hy3-tiny", input="Define river.", text_format=Word, temperature=0)
    assert is_word(response.output_parsed)
    with client.responses.stream(model="hy3-tiny", input="Define river.", text_format=Word, temperature=0) as stream:
        assert stream.get_final_response().output_parsed == response.output_parsed

    async def ask(ours, _):
        return await ours.chat.completions.parse(model="hy3-tiny", messages=user("Define river."), temperature=0,
                                                 response_format=Word, reasoning_effort="none")

    assert is_word(asynchronous(server, ask).choices[0].message.parsed)


@pytest.mark.parametrize("case", RESPONSES)
def test_responses_stream_as_they_are_at_every_length(client, case):
    length = client.responses.create(**response_of(case)).usage.output_tokens
    for most in range(1, length + 1):
        whole = client.responses.create(**response_of(case, max_output_tokens=most))
        events = list(client.responses.create(**response_of(case, max_output_tokens=most, stream=True)))
        final = events[-1].response
        assert (whole.status, final.status) == (("incomplete",) * 2 if most < length else ("completed",) * 2)
        assert told_response(final) == told_response(whole) and final.usage == whole.usage
        assert whole.usage.output_tokens == most
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert done == final.output, "what is done is what there is: a call that was cut is none"
        for kind, name in [("message", "response.output_text.delta"), ("reasoning", "response.reasoning_text.delta")]:
            assert "".join(event.delta for event in events if event.type == name) == "".join(
                item.content[0].text for item in final.output if item.type == kind)


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_stream_as_they_are_at_every_length(claude, case):
    length = claude.messages.create(**message_of(case)).usage.output_tokens
    for most in range(1, length + 1):
        asked = message_of(case, max_tokens=most)
        if case == "thought":
            asked["thinking"] = {"type": "adaptive"}
        whole = claude.messages.create(**asked)
        content, stopped = {}, []
        for event in claude.messages.create(**asked, stream=True):
            if event.type == "content_block_start":
                content[event.index] = ""
            elif event.type == "content_block_delta":
                delta = event.delta
                content[event.index] += getattr(delta, "text", None) or getattr(delta, "thinking", None) or getattr(
                    delta, "partial_json", None) or ""
            elif event.type == "content_block_stop":
                stopped.append(event.index)
            elif event.type == "message_delta":
                reason, usage = event.delta.stop_reason, event.usage
        assert reason == whole.stop_reason == ("max_tokens" if most < length else whole.stop_reason)
        assert usage.output_tokens == whole.usage.output_tokens == most
        assert stopped == list(range(len(whole.content)))
        for index, block in enumerate(whole.content):
            if block.type == "tool_use":
                assert json.loads(content[index]) == block.input
            else:
                assert content[index] == getattr(block, block.type)


def test_completions_stream_as_they_are_at_every_length(client):
    for most in range(1, 13):
        asked = {"model": "hy3-tiny", "prompt": "A river is", "temperature": 0, "max_tokens": most, "logprobs": 1}
        whole = client.completions.create(**asked).choices[0]
        chunks = [c for chunk in client.completions.create(**asked, stream=True) for c in chunk.choices]
        assert "".join(c.text for c in chunks) == whole.text and chunks[-1].finish_reason == whole.finish_reason
        assert [p for c in chunks for p in c.logprobs.token_logprobs] == whole.logprobs.token_logprobs


def test_models_and_errors_by_the_asynchronous_client(server):
    async def ask(ours, theirs):
        models = [model async for model in ours.models.list()]
        errors = []
        for call in [ours.chat.completions.create(model="other", messages=user("x")),
                     ours.chat.completions.create(model="hy3-tiny", messages=[]),
                     ours.responses.create(model="hy3-tiny", input=[]),
                     theirs.messages.create(model="hy3-tiny", messages=[], max_tokens=1)]:
            try:
                await call
            except (openai.APIStatusError, anthropic.APIStatusError) as error:
                errors.append(type(error).__name__)
        return models, errors

    models, errors = asynchronous(server, ask)
    assert [model.id for model in models] == ["hy3-tiny"]
    assert errors == ["NotFoundError", "BadRequestError", "BadRequestError", "BadRequestError"]
