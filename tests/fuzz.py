"""Builds the fuzzers (AddressSanitizer, UndefinedBehaviorSanitizer, libFuzzer) and runs each on inputs that are
made from seeds: the cases of the tests. ./test --full does so, too.

    .venv/bin/python tests/fuzz.py [--runs N] [--seconds N] [NAME…]

What a fuzzer finds lies in build/fuzz/found; `build/fuzz/fuzz/NAME_fuzz FILE` runs it again."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
CASES = ROOT / "tests" / "cases"

FORMS = [
    {"structured_outputs": {"regex": r"(a|b)*c{2,5}[^x]\d"}},
    {"structured_outputs": {"choice": ["a", "ab", "", "é"]}},
    {"structured_outputs": {"grammar": 'start: a+ "x"\na: /[0-9]/ | "(" a ")"\n'}},
    {"response_format": {"type": "json_object"}, "thinking_token_budget": 3, "parallel_tool_calls": False},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/q"}, "b": {"enum": ["x", 1, None]}}, "required": ["a"],
        "$defs": {"q": {"oneOf": [{"const": 1}, {"type": "string", "pattern": "^a+$", "maxLength": 9}]}}}}}},
]
ENDPOINTS = [  # in the order of serve_fuzz.cpp; after them: bytes for a socket
    {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "stop": ["a"]},
    {"prompt": ["Hi", [1, 2]], "echo": True, "logprobs": 2, "n": 2, "stream": True, "logit_bias": {"5": 3.5}},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, {"type": "function_call", "call_id": "c",
     "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "x"}], "stream": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "system": "Be brief.", "max_tokens": 9,
     "tools": [{"name": "f", "input_schema": {"type": "object"}}], "thinking": {"type": "enabled", "budget_tokens": 9}},
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"content": "some text", "with_pieces": True},
    {"tokens": [1, 2, 3]},
    {"messages": [{"role": "user", "content": "Hi"}], "enable_thinking": False},
    {"tokens": [1, 2], "ids": [[1, 2], [3, 4]], "logprobs": [[-0.5, -1], [-1, -2.5]]},
]
SOCKET = [
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\nGET /props HTTP/1.0\r\n\r\n",
    b'POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n5;x=y\r\n{"pro\r\n0\r\nT: 1\r\n\r\n',
    b'POST /tokenize HTTP/1.1\r\nContent-Length: 15\r\n\r\n{"content":"a"}\r\nHEAD / HTTP/1.1\r\nOrigin: http://a\r\n\r\n',
]


def text(value):
    return json.dumps(value, ensure_ascii=False).encode()


def cases(name):
    return [json.loads(line) for line in (CASES / name).read_text().split("\n") if line]


def seeds():
    """The first inputs of each fuzzer; each fuzzer's source says what they are."""
    tools = [case["tools"] for case in cases("answers.jsonl") + cases("answers_more.jsonl") if case["tools"]]
    functions = [tool.get("function") for one in tools for tool in one if isinstance(tool, dict)]
    parameters = [one["parameters"] for one in functions if isinstance(one, dict) and "parameters" in one]
    choices = bytes(i * 37 % 256 for i in range(60))
    requests = [case["request"] for case in cases("prompts.jsonl") + cases("prompts_more.jsonl")]
    return {
        "answer_parser": [b"\1" + text(one) + b"\0" + choices for one in parameters],
        "schema": [text({"tools": one, "tool_choice": "required"}) + b"\0" + choices for one in tools] +
                  [text(form) + b"\0" + choices for form in FORMS],
        "safetensors": [(CASES / "short_prompts.safetensors").read_bytes()[:4096]],
        "serve": [bytes([i]) + text(body) for i, body in enumerate(ENDPOINTS)] +
                 [bytes([len(ENDPOINTS)]) + data for data in SOCKET] + [b"\0" + text(request) for request in requests],
    }


def build(names):
    subprocess.run(["cmake", "--preset", "fuzz"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "--preset", "fuzz", "--target", *(f"{name}_fuzz" for name in names)], cwd=ROOT,
                   check=True, stdout=subprocess.DEVNULL)


def fuzz(name, inputs, limit):
    """Whether nothing was found."""
    corpus, found = BUILD / "corpus" / name, BUILD / "found"
    shutil.rmtree(corpus, ignore_errors=True)
    corpus.mkdir(parents=True)
    found.mkdir(exist_ok=True)
    for i, one in enumerate(inputs):
        (corpus / f"seed{i}").write_bytes(one)
    command = [BUILD / "fuzz" / f"{name}_fuzz", "-seed=1", "-timeout=20", "-rss_limit_mb=4096", "-max_len=4096",
               "-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={found}/{name}-", limit, corpus]
    leaks = "detect_leaks=0" if name == "serve" else ""  # OpenSSL keeps its own until the end
    env = {**os.environ, "UBSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": leaks}
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description="Runs the fuzzers.")
    parser.add_argument("--runs", type=int, default=20000, help="inputs for each (default: 20000)")
    parser.add_argument("--seconds", type=int, help="run each for so long instead")
    parser.add_argument("names", nargs="*", metavar="NAME", help="answer_parser, schema, safetensors, serve (default: all)")
    args = parser.parse_args()
    every = seeds()
    names = args.names or list(every)
    limit = f"-max_total_time={args.seconds}" if args.seconds else f"-runs={args.runs}"
    build(names)
    bad = [name for name in names if not fuzz(name, every[name], limit)]
    print(f"found something: {', '.join(bad)}" if bad else "found nothing")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
