#!/usr/bin/env python3
"""compute-sanitizer over the tests of the CUDA kernels, on a machine with a GPU: a process a test, several at a time.

    tools/sanitize_cuda.py [--program PATH] [--tools memcheck,racecheck] [--jobs N] [--limit SECONDS] [--filter PATTERN]
        [--options OPTIONS]

compute-sanitizer comes with CUDA's toolkit, or from PyPI as nvidia-cuda-sanitizer-api. Prints what became of each
test and the counts; one that took longer than the limit is unfinished, not clean. Exit code 1 where any was not clean."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = {"memcheck": ["--leak-check", "no"], "racecheck": [], "synccheck": [], "initcheck": []}
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


def tests_of(program, pattern):
    """GoogleTest's names of the program's tests."""
    listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], capture_output=True, text=True,
                            check=True).stdout
    suite, names = "", []
    for line in listed.splitlines():
        name = line.split("#")[0].rstrip()
        if name.endswith("."):
            suite = name
        elif name.startswith("  "):
            names.append(suite + name.strip())
    return names


def run(sanitizer, tool, program, name, limit, options):
    """What happened in one word, and what there is to say about it."""
    command = [sanitizer, "--tool", tool, *OPTIONS[tool], *options, program, f"--gtest_filter={name}"]
    try:
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return "unfinished", ""
    if "[  SKIPPED ]" in done.stdout:
        return "skipped", ""
    if "before first instrumented API call" in done.stdout:
        return "without a kernel", ""
    found = SUMMARY.search(done.stdout)
    if found and all(count in (None, "0") for count in found.groups()) and done.returncode == 0:
        return "clean", ""
    lines = dict.fromkeys(re.sub(r" \[\d+ hazards\]", "", line) for line in done.stdout.splitlines()
                          if line.startswith("========= ") and "Host Frame" not in line)  # each once
    return "FAULTY", "\n".join(list(lines)[:40] or [done.stdout[-2000:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "tests" / "cuda_test")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer")
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--limit", type=float, default=600, help="seconds a test")
    parser.add_argument("--filter", default="*", help="as --gtest_filter")
    parser.add_argument("--options", default="", help="more of compute-sanitizer's, as --kernel-name-exclude")
    arguments = parser.parse_args()
    start = time.monotonic()
    program = arguments.program.resolve()
    names = tests_of(program, arguments.filter)
    counts = Counter()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = {pool.submit(run, arguments.sanitizer, tool, program, name, arguments.limit,
                            shlex.split(arguments.options)): (tool, name)
                for tool in arguments.tools.split(",") for name in names}
        for job in as_completed(jobs):
            tool, name = jobs[job]
            verdict, text = job.result()
            counts[tool, verdict] += 1
            print(f"{time.monotonic() - start:6.0f} s  {tool}: {name}: {verdict}", *filter(None, [text]), sep="\n", flush=True)
    for (tool, verdict), count in sorted(counts.items()):
        print(f"{tool}: {count} {verdict}")
    return 0 if all(verdict in ("clean", "without a kernel") for _, verdict in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
