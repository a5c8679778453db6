"""The commands as a person uses them."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from conftest import ROOT

TERCET = ROOT / "build" / "release" / "tercet"


def test_chat_answers_each_line_and_remembers(tercet, model):
    result = tercet("chat", model, "--temp", 0, stdin="My beam is oak.\n\nWhat is my beam?\n/reset\nDefine river.\n")
    assert result.stdout == ("I will remember that your beam is oak.\nYour beam is oak.\n"
                             "River (noun): a large natural stream of water.\n")
    assert result.stderr == ""


def test_chat_keeps_thoughts_apart(tercet, model):
    result = tercet("chat", model, "--temp", 0, "--effort", "high", "-p", "What is 27 + 58?")
    assert result.stdout == "The answer is 85.\n"
    assert "Digits from the right" in result.stderr


def test_chat_commands(tercet, model):
    lines = ["/system Answer in capital letters.", "Define money.", "/stats", "/effort low", "/system", "Define river."]
    result = tercet("chat", model, "--temp", 0, stdin="\n".join(lines))
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == first.upper() and first.startswith("MONEY (NOUN): ")
    assert second == "River (noun): a large natural stream of water."
    assert re.search(r"prompt \d+ tokens \(\d+ from the cache\)", result.stderr)


def test_chat_continues_a_line_after_a_backslash(tercet, model):
    assert tercet("chat", model, "--temp", 0, stdin="What is \\\n27 + 58?\n").stdout == "The answer is 85.\n"


@pytest.mark.parametrize("line, wanted", [("/nonsense", "unknown command /nonsense"), ("/effort huge", "effort")])
def test_chat_ends_at_an_error_that_nobody_sees(tercet, model, line, wanted):
    result = tercet("chat", model, stdin=line + "\nDefine river.\n")
    assert result.returncode == 1 and result.stdout == ""
    assert wanted in result.stderr and result.stderr.count("\n") == 1


def test_chat_asks_for_a_tools_result(tercet, model, tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {
        "name": "get_weather", "description": "Get the weather for a city.", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]))
    lines = 'What is the weather in Tokyo?\n{"temperature": -12, "sky": "cloudy"}\n'
    result = tercet("chat", model, "--temp", 0, "--tools", tools, stdin=lines)
    assert result.stdout == 'get_weather({"city": "Tokyo"})\nIn Tokyo it is -12 degrees with cloudy sky.\n'


def test_a_seed_gives_the_same_text(tercet, model):
    def sample(seed, *options):
        result = tercet("complete", model, "-s", seed, "--temp", 1.5, "-n", 40, "-p", "A", "--json", *options)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["tokens"]

    first = sample(7)
    assert first == sample(7, "-t", 1, "-b", 3) and first != sample(8)


def test_complete_prints_logprobs(tercet, model):
    result = tercet("complete", model, "--temp", 0, "-n", 3, "-p", "A river is", "--logprobs", 2, "--json")
    tokens = json.loads(result.stdout)["logprobs"]
    assert len(tokens) == 3
    for token in tokens:
        assert token["logprob"] <= 0 and len(token["top_logprobs"]) == 2
        assert token["top_logprobs"][0]["id"] == token["id"]  # greedy: the likeliest was drawn
    table = tercet("complete", model, "--temp", 0, "-n", 3, "-p", "A river is", "--logprobs", 2).stdout
    assert len(table.splitlines()) == 3


def test_stop_strings_end_the_text_before_them(tercet, model):
    result = tercet("chat", model, "--temp", 0, "--stop", "natural", "-p", "Define river.")
    assert result.stdout == "River (noun): a large \n"


def test_max_tokens_and_bias(tercet, model):
    answer = json.loads(tercet("complete", model, "--temp", 0, "-n", 5, "-p", "A", "--json", "--ignore-eos").stdout)
    assert answer["finish_reason"] == "length" and len(answer["tokens"]) == 5
    forced = tercet("complete", model, "--temp", 0, "-n", 4, "-p", "A", "--json", "--logit-bias", "300+100")
    assert json.loads(forced.stdout)["tokens"] == [300] * 4


def test_inspect_agrees_with_itself(tercet, model):
    found = json.loads(tercet("inspect", model, "--ctx", "8k", "--json").stdout)
    assert found["context"] == 8192 and found["layers"] == 6
    assert sum(p["parameters"] for p in found["parts"]) == found["parameters"] + found["mtp_parameters"]
    assert found["memory"]["kv"] == 8192 * found["memory"]["kv_per_token"]
    text = tercet("inspect", "synthetic:hy3").stdout
    assert "295.03 B parameters" in text and "Hy3 (295B-A21B)" in text


def test_verify_text(tercet, model, tmp_path):
    cases = ROOT / "tests" / "cases"
    result = tercet("verify", "text", model, cases / "answers.jsonl", cases / "prompts.jsonl")
    assert result.returncode == 0 and result.stdout == "47 passed, 0 failed\n"
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"name": "wrong", "request": {"messages": [{"role": "user", "content": "Hi"}]}, "prompt": "Hi"}\n')
    result = tercet("verify", "text", model, wrong)
    assert result.returncode == 1 and result.stdout.endswith("0 passed, 1 failed\n")
    assert "wrong" in result.stdout.splitlines()[0]


@pytest.mark.parametrize("arguments, code, wanted", [
    (["chat"], 2, "--model is required"),
    (["chat", "nowhere"], 1, "nowhere"),
    (["chat", "synthetic:hy3:1"], 1, "no tokenizer"),
    (["chta"], 2, "did you mean chat?"),
    (["chat", "MODEL", "--temperatur", "1"], 2, "did you mean --temperature?"),
    (["chat", "MODEL", "--ctx-size", "1e9k"], 2, "'1e9k' is not a whole number"),
    (["chat", "MODEL", "--ctx-size", "64k", "-p", "Hi"], 1, "was made for 32768 tokens"),
    (["chat", "MODEL", "--ctx-size", "64", "-p", "Hi " * 100], 1, "64"),
    (["chat", "MODEL", "--tools", "README.md", "-p", "Hi"], 1, "README.md"),
    (["chat", "MODEL", "-f", "/nonexistent"], 1, "/nonexistent"),
    (["chat", "MODEL", "-ngl", "most"], 2, "expected a number of layers, all or auto, found most"),
    (["complete", "MODEL", "-f", "/tmp"], 1, "/tmp: cannot be read: Is a directory"),
    (["complete", "MODEL", "-p", "A", "-f", "README.md"], 2, "--prompt excludes --file"),
    (["complete", "MODEL", "--chat", "-p", "not json"], 1, "line 1, column 2"),
    (["complete", "MODEL", "--chat", "-p", '{"messages": []}'], 1, "messages"),
    (["complete", "MODEL", "-p", "A", "--tp", "3"], 1, "3 tensor shards"),
    (["complete", "MODEL", "-p", "A", "--pp", "7"], 1, "7 pipeline stages"),
    (["score", "MODEL", "/nonexistent"], 1, "/nonexistent"),
])
def test_bad_input_is_one_clear_error(tercet, model, arguments, code, wanted):
    result = tercet(*[model if a == "MODEL" else a for a in arguments])
    assert result.returncode == code
    assert wanted in result.stderr and result.stdout == ""
    assert result.stderr.startswith("tercet: error: ") and result.stderr.count("\n") <= (1 if code == 1 else 3)


def test_an_empty_prompt_is_an_error(tercet, model):
    result = tercet("complete", model, stdin="")
    assert result.returncode == 1 and "no tokens" in result.stderr


def interactive(model, *options):
    parent, child = pty.openpty()
    process = subprocess.Popen([TERCET, "chat", model, "--temp", "0", *options], stdin=child, stdout=child, stderr=child,
                               env={**os.environ, "NO_COLOR": "1"}, start_new_session=True)
    os.close(child)
    return parent, process


def read_until(parent, wanted, seconds=60):
    text, end = "", time.monotonic() + seconds
    while wanted not in text:
        assert time.monotonic() < end, text
        text += os.read(parent, 4096).decode(errors="replace")
    return text


def test_ctrl_c_stops_the_answer_and_not_the_program(model):
    parent, process = interactive(model, "--ignore-eos")
    read_until(parent, "> ")
    os.write(parent, b"Define river.\n")
    read_until(parent, "water")
    process.send_signal(signal.SIGINT)
    read_until(parent, "> ")
    os.write(parent, b"/exit\n")
    assert process.wait(60) == 0
    os.close(parent)


def test_ctrl_d_leaves(model):
    parent, process = interactive(model)
    read_until(parent, "> ")
    os.write(parent, b"\x04")
    assert process.wait(60) == 0
    os.close(parent)


FULL = "/dev/full"  # accepts no byte


@pytest.mark.parametrize("command", [["complete", "-p", "hi", "-n", "30000", "--ignore-eos"],
                                     ["complete", "--chat", "-p", '{"messages": [{"role": "user", "content": "hi"}]}'],
                                     ["chat", "-p", "hi"], ["inspect"]])
def test_an_answer_that_cannot_be_written_is_an_error_and_ends(model, command):
    with open(FULL, "w") as full:
        result = subprocess.run([TERCET, command[0], model, *command[1:]], stdout=full, stderr=subprocess.PIPE,
                                text=True, timeout=60)
    assert (result.returncode, result.stderr) == (1, "tercet: error: cannot write to standard output\n")


def test_nobody_needs_to_read_standard_error(model):
    def run(*arguments):
        with open(FULL, "w") as full:
            return subprocess.run([TERCET, *arguments], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60)

    assert run().returncode == 2
    assert run("nope").returncode == 2
    assert run("complete", model, "--unknown").returncode == 2
    thinking = run("chat", model, "--temp", "0", "--effort", "high", "-p", "What is 27 + 58?")
    assert (thinking.returncode, thinking.stdout) == (0, "The answer is 85.\n")


def test_the_server_goes_on_where_nobody_takes_its_log(model):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open(FULL, "w") as full:
        process = subprocess.Popen([TERCET, "serve", model, "--port", str(port)], stdout=full, stderr=full)
    try:
        for _ in range(600):
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", b'{"prompt": "hi"}',
                                                 {"Content-Type": "application/json"})
                assert urllib.request.urlopen(request, timeout=20).status == 200
                break
            except urllib.error.URLError:  # not yet
                assert process.poll() is None
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
