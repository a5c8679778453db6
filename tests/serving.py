"""A `tercet serve` process for tests, and what several test files ask of it."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("TERCET_PROGRAM") or ROOT / "build" / "release" / "tercet")  # sanitizers' builds, say
MODEL = ROOT / "models" / "hy3-tiny"

WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]}}}]
ASK_WEATHER = "What is the weather in Tokyo for the next 3 days?"
# Sentences without meaning for one another, as a hiding place.
FILLER = ("He hated to play second fiddle to anyone. The Atlantic coastal plain. They soaked the leather to make it "
          "pliable. A diagonal line across the page. He wanted to get outdoors a little. Many birds feed their young. ")


class Server:
    """Started with options beside the model; ready when the constructor returns, unless `wait` is False."""

    def __init__(self, *options, model=MODEL, wait=True, env=None, scheme="http"):
        self.process = subprocess.Popen([PROGRAM, "serve", model, "--port", "0", *map(str, options)], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        self.log, self.messages = [], []
        self._listening, self._ready = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._read_log, daemon=True),
                         threading.Thread(target=self._read_messages, daemon=True)]
        for thread in self._threads:
            thread.start()
        assert self._listening.wait(60), self.messages
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        if wait:
            assert self._ready.wait(120), self.messages

    def _read_log(self):
        for line in self.process.stdout:
            self.log.append(json.loads(line))

    def _read_messages(self):
        for line in self.process.stderr:
            self.messages.append(line.rstrip("\n"))
            if match := re.search(r"listening on \S+:(\d+)$", line.strip()):
                self.port = int(match[1])
                self._listening.set()
            if " is ready: " in line:
                self._ready.set()

    def get(self, path, **kwargs):
        return httpx.get(self.url + path, timeout=60, **kwargs)

    def post(self, path, body, **kwargs):
        return httpx.post(self.url + path, json=body, timeout=120, **kwargs)

    def metric(self, name):
        """The sum of a metric's samples."""
        values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", self.get("/metrics").text, re.MULTILINE)
        assert values, name
        return sum(map(float, values))

    def idle(self, seconds=60):
        """Waits until no request runs or waits; the cache's pages are then free or cached."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            props = self.get("/props").json()
            if props["running"] == props["waiting"] == props["cache"]["active"] == 0:
                assert props["cache"]["free"] + props["cache"]["cached"] == props["cache"]["pages"]
                return True
            time.sleep(0.02)
        return False

    def stop(self, number=signal.SIGTERM, seconds=60):
        """Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(10)


@contextmanager
def serving(*options, **kwargs):
    server = Server(*options, **kwargs)
    try:
        yield server
    finally:
        server.close()


def events_of(response_text):
    """The data of a stream's events, comments left out; the last must be [DONE]."""
    data = [line.removeprefix("data: ") for line in response_text.split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]" and data.count("[DONE]") == 1
    return [json.loads(one) for one in data[:-1]]


def user(text):
    return [{"role": "user", "content": text}]


def raw(server, data, seconds=20):
    """What comes back for bytes sent over a connection of their own, until it is closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def joined(chunks):
    """What the chunks of a stream amount to: per choice role, content, reasoning, calls, finish_reason, logprobs."""
    choices = {}
    for chunk in chunks:
        for choice in chunk.choices:
            told = choices.setdefault(choice.index, {"role": None, "content": "", "reasoning": "", "calls": {},
                                                     "finish": None, "logprobs": []})
            assert told["finish"] is None, "nothing follows the end of a choice"
            delta = choice.delta
            if delta.role:
                assert told["role"] is None, "the role is told once"
                told["role"] = delta.role
            told["content"] += delta.content or ""
            told["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                if call.index not in told["calls"]:
                    assert call.id and call.type == "function" and call.function.name
                    told["calls"][call.index] = {"id": call.id, "name": call.function.name, "arguments": ""}
                else:
                    assert call.id is None and call.type is None and call.function.name is None
                told["calls"][call.index]["arguments"] += call.function.arguments
            if choice.logprobs:
                told["logprobs"] += choice.logprobs.content
            told["finish"] = choice.finish_reason
    return choices
