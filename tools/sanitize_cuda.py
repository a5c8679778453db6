#!/usr/bin/env python3
"""compute-sanitizer over the tests of the CUDA kernels, on a machine with a GPU: a process a test, several at a time.

    tools/sanitize_cuda.py [--program PATH] [--tools memcheck,racecheck] [--jobs N] [--limit SECONDS] [--filter PATTERN]
        [--options OPTIONS] [--every-size]

compute-sanitizer comes with CUDA's toolkit, or from PyPI as nvidia-cuda-sanitizer-api, of which version 13.5 has all
files that it needs and 13.0 and 13.1 lack some. The tests run in a few sizes that take every kernel, unless --every-size
is given. Prints what became of each test and in how many seconds, and the counts; one that took longer than the limit
is unfinished, not clean. Exit code 1 where any was not clean."""

import argparse
import os
import re
import shlex
import shutil
import signal
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


def run(sanitizer, tool, program, name, limit, options, environment):
    """What happened in one word, what there is to say about it, and the seconds it took."""
    start = time.monotonic()
    verdict, text = judge(sanitizer, tool, program, name, limit, options, environment)
    return verdict, text, time.monotonic() - start


def judge(sanitizer, tool, program, name, limit, options, environment):
    """What happened in one word, and what there is to say about it."""
    command = [sanitizer, "--tool", tool, *OPTIONS[tool], *options, program, f"--gtest_filter={name}"]
    done = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace", start_new_session=True, env=environment)
    try:
        output, _ = done.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, signal.SIGKILL)  # the program too, which would go on without the sanitizer
        done.communicate()
        return "unfinished", ""
    if "[  SKIPPED ]" in output:
        return "skipped", ""
    if "before first instrumented API call" in output and "[  PASSED  ] 1 test." in output:
        return "without a kernel", ""
    found = SUMMARY.search(output)
    if found and all(count in (None, "0") for count in found.groups()) and done.returncode == 0:
        return "clean", ""
    lines = dict.fromkeys(re.sub(r" \[\d+ hazards\]", "", line) for line in output.splitlines()
                          if line.startswith("========= ") and "Host Frame" not in line)  # each once
    return "FAULTY", "\n".join(list(lines)[:40] or [output[-2000:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "tests" / "cuda_test")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer")
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--limit", type=float, default=600, help="seconds a test")
    parser.add_argument("--filter", default="-*/fresh", help="as --gtest_filter; by default not what has other inputs each time")
    parser.add_argument("--options", default="", help="more of compute-sanitizer's, as --kernel-name-exclude")
    parser.add_argument("--every-size", action="store_true", help="not only a few sizes that take every kernel")
    arguments = parser.parse_args()
    environment = dict(os.environ) if arguments.every_size else {**os.environ, "TERCET_BRIEF": "1"}
    program = arguments.program.resolve()
    names = tests_of(program, arguments.filter)
    counts = Counter()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = {pool.submit(run, arguments.sanitizer, tool, program, name, arguments.limit,
                            shlex.split(arguments.options), environment): (tool, name)
                for tool in arguments.tools.split(",") for name in names}
        for job in as_completed(jobs):
            tool, name = jobs[job]
            verdict, text, seconds = job.result()
            counts[tool, verdict] += 1
            print(f"{seconds:6.1f} s  {tool}: {name}: {verdict}", *filter(None, [text]), sep="\n", flush=True)
    for (tool, verdict), count in sorted(counts.items()):
        print(f"{tool}: {count} {verdict}")
    return 0 if all(verdict in ("clean", "without a kernel") for _, verdict in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
