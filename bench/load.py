#!/usr/bin/env python3
"""How fast a checkpoint gets from the page cache into a backend's memory, beside how fast threads that do nothing
else read it from there.

    bench/load.py synthetic:hy-mt2-30b [--build DIR] [--program PATH] [--backend NAME] [--folder DIR] [--rounds N]

Writes the made-up checkpoint into a new folder (in --folder) and deletes it afterwards; a checkpoint's own folder
in its place is only read."""

import argparse
import json
import os
import re
import struct
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIECE = 8 << 20


def read_rate(folder, threads):
    """Bytes a second of reading all weights, pieces in turn by whoever is free."""
    files = [(os.open(path, os.O_RDONLY), path.stat().st_size) for path in sorted(folder.glob("*.safetensors"))]
    pieces = [(file, at) for file, size in files for at in range(0, size, PIECE)]
    buffers = [bytearray(PIECE) for _ in range(threads)]

    def read(thread):
        for file, at in pieces[thread::threads]:
            os.preadv(file, [buffers[thread]], at)

    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        list(pool.map(read, range(threads)))
        seconds = time.perf_counter() - start
    for file, _ in files:
        os.close(file)
    return sum(size for _, size in files) / seconds


def write_tokens(path):
    """A sequence of two tokens for `tercet score`."""
    header = json.dumps({"tokens.0": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<ii", 1, 2))


def load_seconds(program, folder, tokens, backend, threads):
    """What the program says that loading took."""
    command = [program, "score", folder, tokens, "--digest", "--backend", backend, "--threads", str(threads), "--verbose"]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    found = re.search(r"weights of \d+ layers loaded in ([\d.]+) s", run.stderr)
    if run.returncode != 0 or not found:
        raise SystemExit(f"{program} score failed: {run.stderr.strip()}")
    return float(found[1])


def measure(folder, arguments, tokens):
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    threads = arguments.threads
    read_rate(folder, threads)  # into the page cache
    print(f"{size / 1e9:.2f} GB, {threads} threads")
    for _ in range(arguments.rounds):
        read = read_rate(folder, threads)
        loaded = size / load_seconds(arguments.program or arguments.build / "tercet", folder, tokens, arguments.backend, threads)
        one = read_rate(folder, 1)
        print(f"read {read / 1e9:.2f} GB/s (one thread {one / 1e9:.2f}), loaded {loaded / 1e9:.2f} GB/s: "
              f"{100 * loaded / read:.0f} %", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="a checkpoint's folder, or what tercet_write_checkpoint can make")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--program", type=Path, help="another build's tercet")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--folder", help="where the made-up checkpoint is written (default: the system's for such)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        tokens = Path(scratch) / "tokens.safetensors"
        write_tokens(tokens)
        folder = Path(arguments.model)
        if arguments.model.startswith("synthetic:"):
            folder = Path(scratch) / "checkpoint"
            writer = arguments.build / "tools" / "tercet_write_checkpoint"
            subprocess.run([writer, "synthetic", arguments.model, folder, "--shards", "4"], check=True)
        measure(folder, arguments, tokens)


if __name__ == "__main__":
    main()
