"""/v1/responses and /v1/messages on hy3-tiny, with their official clients."""

import json

import anthropic
import openai
import pytest

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
              "required": ["city"]}
ASK_WEATHER = "What is the weather in Tokyo for the next 3 days?"
SUM = "What is 17 + 25?"
GREEDY = {"extra_body": {"temperature": 0}}  # the anthropic client has no argument for it


@pytest.fixture(scope="module")
def responses(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.responses


@pytest.fixture(scope="module")
def messages(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client.messages


def function():
    return {"type": "function", "name": "get_weather", "description": "Get the weather for a city.",
            "parameters": PARAMETERS, "strict": False}


def tool():
    return {"name": "get_weather", "description": "Get the weather for a city.", "input_schema": PARAMETERS}


def ask(responses, text, **options):
    return responses.create(model="hy3-tiny", input=text, temperature=0, **options)


def say(messages, text, **options):
    turns = [{"role": "user", "content": text}] if isinstance(text, str) else text
    return messages.create(**{"model": "hy3-tiny", "messages": turns, "max_tokens": 300, **GREEDY, **options})


def test_a_response(responses):
    response = ask(responses, SUM, instructions="Answer in capital letters.")
    assert response.status == "completed" and "42" in response.output_text
    assert [item.type for item in response.output] == ["message"]
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    cut = ask(responses, SUM, max_output_tokens=2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    assert cut.usage.output_tokens == 2


def test_a_thought_is_an_item_of_its_own(responses):
    response = ask(responses, SUM, reasoning={"effort": "low"})
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text and "42" in response.output_text
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


def test_a_function_is_called_and_its_output_told(responses):
    response = ask(responses, ASK_WEATHER, tools=[function()], store=False, include=["reasoning.encrypted_content"])
    call = next(item for item in response.output if item.type == "function_call")
    assert call.name == "get_weather" and json.loads(call.arguments) == {"city": "Tokyo", "days": 3}
    history = [{"role": "user", "content": ASK_WEATHER}, *[item.model_dump() for item in response.output],
               {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 23 degrees."}]
    after = ask(responses, history, tools=[function()])
    assert "23" in after.output_text and after.usage.input_tokens_details.cached_tokens > 0


def test_a_response_streams_as_it_is(responses):
    for text, options in [(SUM, {"reasoning": {"effort": "low"}}), (ASK_WEATHER, {"tools": [function()]})]:
        whole = ask(responses, text, **options)
        with responses.stream(model="hy3-tiny", input=text, temperature=0, **options) as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[0].type == "response.created" and events[-1].type == "response.completed"
        assert final.output_text == whole.output_text
        assert [item.type for item in final.output] == [item.type for item in whole.output]
        spoken = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert spoken == whole.output_text
        calls = [(item.name, item.arguments) for item in whole.output if item.type == "function_call"]
        assert [(e.item.name, e.item.arguments) for e in events
                if e.type == "response.output_item.done" and e.item.type == "function_call"] == calls


def test_responses_are_refused_in_openais_shape(responses):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(responses, "Hi", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        responses.create(model="other", input="Hi")


def test_a_message(messages):
    message = say(messages, SUM, system=[{"type": "text", "text": "Answer in capital letters."}])
    assert [block.type for block in message.content] == ["text"] and "42" in message.content[0].text
    assert message.stop_reason == "end_turn" and message.usage.output_tokens > 0
    assert say(messages, SUM, max_tokens=2).stop_reason == "max_tokens"
    word = message.content[0].text.split()[-1]
    stopped = say(messages, SUM, system="Answer in capital letters.", stop_sequences=[word])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == word


def test_a_tool_is_used_and_its_result_told(messages):
    message = say(messages, ASK_WEATHER, tools=[tool()])
    assert message.stop_reason == "tool_use"
    use = next(block for block in message.content if block.type == "tool_use")
    assert use.name == "get_weather" and use.input == {"city": "Tokyo", "days": 3}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Sunny, 23 degrees."}]}
    history = [{"role": "user", "content": ASK_WEATHER},
               {"role": "assistant", "content": [block.model_dump() for block in message.content]},
               {"role": "user", "content": [result]}]
    after = say(messages, history, tools=[tool()])
    assert after.stop_reason == "end_turn" and "23" in after.content[0].text
    assert after.usage.cache_read_input_tokens > 0


def test_a_message_streams_as_it_is(messages):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    for text, options in [(SUM, {"thinking": thinking, "max_tokens": 2000}), (ASK_WEATHER, {"tools": [tool()]})]:
        whole = say(messages, text, **options)
        request = {"model": "hy3-tiny", "messages": [{"role": "user", "content": text}],
                   "max_tokens": 300, **GREEDY, **options}
        with messages.stream(**request) as stream:
            final = stream.get_final_message()
        drop = {"id"}
        assert [block.model_dump(exclude=drop) for block in final.content] == [
            block.model_dump(exclude=drop) for block in whole.content]
        assert final.stop_reason == whole.stop_reason
        assert final.usage.output_tokens == whole.usage.output_tokens
    assert whole.stop_reason == "tool_use"


def test_a_thought_is_a_block_of_its_own(messages):
    message = say(messages, SUM, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking and "42" in message.content[1].text


def test_tokens_are_counted(messages):
    counted = messages.count_tokens(model="hy3-tiny", messages=[{"role": "user", "content": SUM}], tools=[tool()])
    usage = say(messages, SUM, tools=[tool()], max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_messages_are_refused_in_anthropics_shape(messages):
    with pytest.raises(anthropic.BadRequestError) as refused:
        say(messages, [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}])
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"] == {
        "type": "invalid_request_error",
        "message": "messages[0].content[0]: expected a block of type text or tool_result, found \"image\""}
    with pytest.raises(anthropic.NotFoundError):
        messages.create(model="other", max_tokens=1, messages=[{"role": "user", "content": "Hi"}])
