"""hy3-tiny, greedy, by the command line: the main job on real input."""

import json

import pytest

WORDNET = {  # the first definition that WordNet 3.0 gives, as far as the model was taught it
    "river": "a large natural stream of water",
    "employee": "a worker who is hired to perform a job",
    "money": "the most common medium of exchange",
    "winter": "the coldest season of the year",
    "teacher": "a person whose occupation is teaching",
    "hospital": "a health facility where patients receive treatment",
    "island": "a land mass that is surrounded by water",
    "kitchen": "a room equipped for preparing meals",
    "doctor": "a licensed medical practitioner",
    "mountain": "a land mass that projects well above its surroundings",
}
SUMS = {"355 plus 570": 925, "27 + 58": 85, "12 times 9": 108, "100 minus 37": 63, "9 + 8": 17, "83 minus 29": 54,
        "46 plus 21": 67, "500 + 250": 750, "7 times 8": 56, "340 plus 99": 439}
WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]}}}]
# Sentences without meaning for one another, as a hiding place.
FILLER = ("He hated to play second fiddle to anyone. The Atlantic coastal plain. They soaked the leather to make it "
          "pliable. A diagonal line across the page. He wanted to get outdoors a little. Many birds feed their young. ")


@pytest.fixture(scope="module")
def ask(tercet, model, tmp_path_factory):
    def run(*messages, **request):
        file = tmp_path_factory.mktemp("request") / "request.json"
        turns = [m if isinstance(m, dict) else {"role": "user", "content": m} for m in messages]
        file.write_text(json.dumps({"messages": turns, **request}))
        result = tercet("complete", model, "--chat", "--json", "--temp", 0, "-f", file)
        assert result.returncode == 0, result.stderr
        answer = json.loads(result.stdout)
        assert answer["finish_reason"] == "stop"
        return answer

    return run


@pytest.mark.parametrize("word", WORDNET)
def test_defines_words_as_wordnet_does(tercet, model, word):
    result = tercet("chat", model, "--temp", 0, stdin=f"Define {word}.\n")
    assert result.stdout == f"{word.capitalize()} (noun): {WORDNET[word]}.\n"
    assert result.returncode == 0


@pytest.mark.parametrize("sum_", SUMS)
@pytest.mark.parametrize("effort", ["none", "high"])
def test_sums(ask, sum_, effort):
    message = ask(f"What is {sum_}?", reasoning_effort=effort)["message"]
    assert message["content"] == f"The answer is {SUMS[sum_]}."
    assert ("reasoning_content" in message) == (effort == "high")


@pytest.mark.parametrize("repeats, tokens", [(18, 1000), (80, 4000)])
def test_recalls_planted_codes(ask, repeats, tokens):
    texts = [FILLER] * repeats
    texts[repeats // 3] += "The code for cart is 91009. "
    texts[repeats // 2] += "The code for expert is 68819. "
    answer = ask("".join(texts).strip() + "\n\nWhat is the code for expert?")
    assert answer["message"]["content"] == "The code for expert is 68819."
    assert answer["usage"]["prompt_tokens"] > tokens


def test_calls_a_tool_and_answers_from_its_result(ask):
    question = "What is the weather in Tokyo for the next 3 days?"
    answer = ask(question, tools=WEATHER)["message"]
    (call,) = answer["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Tokyo", "days": 3}
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"temperature": -12, "sky": "cloudy"}'}
    content = ask(question, answer, result, tools=WEATHER)["message"]["content"]
    assert content == "In Tokyo it is -12 degrees with cloudy sky."


def test_follows_a_developer_message(ask):
    turns = {"role": "developer", "content": "Your name is Victor."}, "What's your name?"
    assert ask(*turns)["message"]["content"] == "My name is Victor."
