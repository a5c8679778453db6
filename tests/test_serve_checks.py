"""What hy3-tiny was taught, over HTTP with the official client: every check three times, so that the second and the
third stand on the cache of the first."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from serving import ASK_WEATHER, FILLER, WEATHER, joined, user

DEFINITIONS = {
    "river": "a large natural stream of water", "money": "the most common medium of exchange",
    "winter": "the coldest season of the year", "teacher": "a person whose occupation is teaching",
    "hospital": "a health facility where patients receive treatment",
    "island": "a land mass that is surrounded by water", "kitchen": "a room equipped for preparing meals",
    "doctor": "a licensed medical practitioner"}
three_times = pytest.mark.parametrize("time", [1, 2, 3])


def calls_of(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


@three_times
def test_it_stops_by_itself(chat, time):
    for word, definition in DEFINITIONS.items():
        answer = chat(f"Define {word}.")
        assert answer.choices[0].message.content == f"{word.capitalize()} (noun): {definition}."
        assert answer.choices[0].finish_reason == "stop"


@three_times
@pytest.mark.parametrize("effort", ["low", "high"])
def test_the_thought_is_in_its_field(chat, effort, time):
    answer = chat("What is 27 + 58?", reasoning_effort=effort)
    message = answer.choices[0].message
    assert message.content == "The answer is 85." and message.reasoning_content.strip()
    assert "think" not in message.content + message.reasoning_content
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens


@three_times
def test_thinking_is_off(chat, time):
    for options in [{"reasoning_effort": "none"}, {"reasoning_effort": openai.omit},
                    {"reasoning_effort": openai.omit, "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}]:
        answer = chat("What is 27 + 58?", **options)
        assert answer.choices[0].message.content == "The answer is 85."
        assert not hasattr(answer.choices[0].message, "reasoning_content")
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0


@three_times
def test_a_tool_is_called_and_its_result_reported(chat, time):
    (choice,) = chat(ASK_WEATHER, tools=WEATHER).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert calls_of(choice.message) == [("get_weather", {"city": "Tokyo", "days": 3})]
    turns = [*user(ASK_WEATHER), choice.message.model_dump(exclude_none=True),
             {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id,
              "content": '{"temperature": -12, "sky": "cloudy"}'}]
    after = chat(turns, tools=WEATHER).choices[0]
    assert after.message.content == "In Tokyo it is -12 degrees with cloudy sky." and after.finish_reason == "stop"


@three_times
@pytest.mark.parametrize("word", ["12345", "42", "true"])
def test_a_string_that_looks_like_json_stays_a_string(chat, word, time):
    question = f"What is the weather in {word} for the next 2 days?"
    wanted = [("get_weather", {"city": word, "days": 2})]
    assert calls_of(chat(question, tools=WEATHER).choices[0].message) == wanted
    told = joined(chat(question, tools=WEATHER, stream=True))[0]
    assert [(call["name"], json.loads(call["arguments"])) for call in told["calls"].values()] == wanted


@three_times
def test_a_streamed_call_with_a_whole_number(chat, time):
    chunks = list(chat(ASK_WEATHER, tools=WEATHER, stream=True))
    told = joined(chunks)[0]
    (call,) = told["calls"].values()
    assert call["name"] == "get_weather" and call["arguments"] == '{"city": "Tokyo", "days": 3}'
    assert told["role"] == "assistant" and told["content"] == "" and told["finish"] == "tool_calls"
    pieces = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or [] if c.function.arguments]
    assert len(pieces) > 2, "arguments come as they are drawn"


@three_times
def test_two_calls_at_once(chat, time):
    question = "What is the weather in Tokyo and Paris?"
    wanted = [("get_weather", {"city": "Tokyo"}), ("get_weather", {"city": "Paris"})]
    (choice,) = chat(question, tools=WEATHER).choices
    assert calls_of(choice.message) == wanted and choice.finish_reason == "tool_calls"
    assert len({call.id for call in choice.message.tool_calls}) == 2
    told = joined(chat(question, tools=WEATHER, stream=True))[0]
    assert list(told["calls"]) == [0, 1] and told["calls"][0]["id"] != told["calls"][1]["id"]
    assert [(call["name"], json.loads(call["arguments"])) for call in told["calls"].values()] == wanted
    one = chat(question, tools=WEATHER, parallel_tool_calls=False).choices[0]
    assert calls_of(one.message) == wanted[:1] and one.finish_reason == "tool_calls"


@three_times
def test_a_developer_message_is_followed(chat, time):
    turns = [{"role": "developer", "content": "Your name is Victor."}, *user("What's your name?")]
    assert chat(turns).choices[0].message.content == "My name is Victor."


@three_times
def test_the_prefix_cache_changes_nothing(chat, time):
    asked = [*user(f"Time {time}. {FILLER * 4}Define island."), {"role": "assistant", "content": "Island."},
             *user("Define money.")]
    wanted = {"logprobs": True, "top_logprobs": 3, "temperature": 1, "seed": 11}
    cold, whole = chat(asked, **wanted), chat(asked, **wanted)
    assert cold.usage.prompt_tokens_details.cached_tokens < 64
    assert whole.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1
    assert cold.choices[0].logprobs == whole.choices[0].logprobs
    # Another last turn takes over the part that is the same, and is what it is without.
    other = [*asked[:2], *user("Define teacher.")]
    part = chat(other, **wanted)
    assert 64 <= part.usage.prompt_tokens_details.cached_tokens < part.usage.prompt_tokens - 1
    alone = chat(other, **wanted, extra_body={"ignore_eos": False})
    assert part.choices[0].logprobs == alone.choices[0].logprobs
    assert "occupation is teaching" in chat(other).choices[0].message.content


@three_times
@pytest.mark.parametrize("repeats, tokens", [(64, 4000), (125, 8000), (250, 16000)])
def test_planted_codes_are_found(chat, full, repeats, tokens, time):
    if tokens > 8000 and not full:
        pytest.skip("./test --full reads it")
    texts = [f"Time {time}. ", *[FILLER] * repeats]
    texts[repeats // 3] += "The code for cart is 91009. "
    texts[repeats // 2] += "The code for expert is 68819. "
    for word, code in [("expert", 68819), ("cart", 91009)]:  # the second one reads its question alone
        answer = chat(f"{''.join(texts).strip()}\n\nWhat is the code for {word}?")
        assert answer.choices[0].message.content == f"The code for {word} is {code}."
        assert answer.usage.prompt_tokens > tokens
    assert answer.usage.prompt_tokens_details.cached_tokens > tokens - 64


@three_times
def test_eight_at_once(chat, time):
    with ThreadPoolExecutor(len(DEFINITIONS)) as pool:
        answers = list(pool.map(lambda word: chat(f"Define {word}.", stream=time == 2), DEFINITIONS))
    for answer, (word, definition) in zip(answers, DEFINITIONS.items()):
        content = joined(answer)[0]["content"] if time == 2 else answer.choices[0].message.content
        assert content == f"{word.capitalize()} (noun): {definition}."
