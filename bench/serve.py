#!/usr/bin/env python3
"""What serving costs: the time that `tercet serve` adds to a token of `tercet bench`, and what several streams at
once give beside one. Everything is measured in turns, many times, since a machine's speed changes by the minute.

    bench/serve.py [MODEL] [--program PATH] [--streams N] [--tokens N] [--rounds N]
"""

import argparse
import json
import re
import selectors
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPETITIONS = 3  # of a measurement, before the next one has its turn


class Server:
    """A server process, and streams of it that are read as fast as they come."""

    def __init__(self, program, model):
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--no-access-log"], text=True,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for line in self.process.stderr:
            if found := re.search(r"listening on \S+:(\d+)$", line.strip()):
                self.port = int(found[1])
            if " is ready: " in line:
                return
        raise SystemExit(f"{program} serve {model} did not start")

    def streams(self, count, tokens):
        """Of `count` streams at once: tokens a second of all together, and the least seconds from a token to the
        next. One thread reads them all, and looks at what it read at the end only."""
        body = json.dumps({"messages": [{"role": "user", "content": "Define river."}], "temperature": 0,
                           "ignore_eos": True, "max_tokens": tokens, "stream": True,
                           "stream_options": {"include_usage": True}}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connections = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(count)]
        received = {connection: [] for connection in connections}
        with selectors.DefaultSelector() as selector:
            begun = time.perf_counter()
            for connection in connections:
                connection.sendall(head.encode() + body)
                selector.register(connection, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 16)
                    received[key.fileobj].append((time.perf_counter(), data))
                    if not data or b"data: [DONE]" in data:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
        end = max(times[-1][0] for times in received.values())
        between = []
        for times in received.values():
            counted = re.search(rb'"completion_tokens": (\d+)', b"".join(data for _, data in times[-4:]))
            assert counted and int(counted[1]) == tokens, times[-1]
            first = next(at for at, data in times if re.search(rb'"content": "[^"]', data))
            between.append((times[-1][0] - first) / (tokens - 1))
        return count * tokens / (end - begun), min(between)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def bench(program, model, tokens, parallel):
    """Tokens a second of each repetition, without a server."""
    command = [program, "bench", model, "-p", "0", "-n", str(tokens), "--parallel", str(parallel),
               "-r", str(REPETITIONS), "-o", "json"]
    (test,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return test["samples_ts"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "hy3-tiny"))
    parser.add_argument("--program", default=str(ROOT / "build" / "release" / "tercet"))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()

    server = Server(args.program, args.model)
    server.streams(args.streams, 64)  # warms up
    found = {name: [] for name in ("computed", "served", "one", "bench of several", "several")}
    for _ in range(args.rounds):  # as many samples of each, of as many tokens
        found["computed"] += [1 / rate for rate in bench(args.program, args.model, args.tokens, 1)]
        for _ in range(REPETITIONS):
            rate, between = server.streams(1, args.tokens)
            found["one"].append(1 / rate)
            found["served"].append(between)
        found["bench of several"] += [1 / rate for rate in bench(args.program, args.model, args.tokens, args.streams)]
        found["several"] += [1 / server.streams(args.streams, args.tokens)[0] for _ in range(REPETITIONS)]
    server.stop()

    print(f"{args.tokens} tokens, {args.rounds * REPETITIONS} times each, us a token     best   lower quarter   median")
    for name, text in [("computed", "bench, 1 sequence"), ("served", "served, 1 stream, token to token"),
                       ("one", "served, 1 stream, whole request"),
                       ("bench of several", f"bench, {args.streams} sequences"),
                       ("several", f"served, {args.streams} streams, whole requests")]:
        found[name].sort()
        print(f"{text:40}", *(f"{1e6 * value:11.1f}" for value in quantiles(found[name])))
    for text, low, high, form in [("the server adds", "computed", "served", lambda a, b: f"{1e6 * (b - a):.1f} us"),
                                  ("several streams beside one", "several", "one", lambda a, b: f"{b / a:.2f} x"),
                                  ("of bench's several", "bench of several", "several", lambda a, b: f"{a / b:.2f} x")]:
        print(f"{text:40}", *(f"{form(a, b):>11}" for a, b in zip(quantiles(found[low]), quantiles(found[high]))))


def quantiles(values):
    """The best, the lower quarter and the median of sorted values."""
    return values[0], values[len(values) // 4], values[len(values) // 2]


if __name__ == "__main__":
    main()
