"""tercet bench and verify device: what they print, never how fast."""

import csv
import io
import json
import re
import shutil

import pytest

SMALL = ["-p", "8,16", "-n", "4", "-r", "2"]


def test_formats_agree(tercet, model):
    table = tercet("bench", model, *SMALL, timeout=300)
    assert table.returncode == 0, table.stderr
    tests = ("pp8", "pp16", "tg4")
    assert all(f"| {test}" in table.stdout for test in tests)
    rows = list(csv.reader(io.StringIO(tercet("bench", model, *SMALL, "-o", "csv").stdout)))
    assert len({len(row) for row in rows if row}) == 1
    assert all(any(test in row for row in rows) for test in tests)
    assert json.loads(tercet("bench", model, *SMALL, "-o", "json").stdout)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_profile(tercet, model, backend):
    if backend == "cuda" and shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA GPU on this machine")
    options = [model, "-p", "0", "-n", "4", "-r", "1", "--profile", "--backend", backend]
    table = tercet("bench", *options).stdout
    alone, kernels = (", when they do not overlap", r" and (\d+\.\d) kernels") if backend == "cuda" else ("", "")
    title = re.search(rf"^tg4: \d+ µs a step, \d+ with its parts timed{alone}: \d+\.\d µs{kernels} a layer, "
                      r"\d+\.\d % outside the parts$", table, re.MULTILINE)
    assert title, table
    assert ("kernels a call" in table) == (backend == "cuda")
    assert re.search(r"^\| part +\| +time \| calls \|.* µs a call \| µs a step \| MB a call \| +GB/s \| of the "
                     r"bandwidth \|", table, re.MULTILINE), table
    parts = {part["part"]: part for part in json.loads(tercet("bench", *options, "-o", "json").stdout)[0]["profile"]}
    calls = {"embedding": 1, "norms": 13, "qkv": 6, "attention": 6, "dense up": 1, "router": 5, "experts down": 5,
             "lm_head": 1, "draw": 1}
    assert {name: parts[name]["calls_per_step"] for name in calls} == calls
    assert all(part["seconds_per_step"] > 0 for part in parts.values())
    assert parts["lm_head"]["bytes_per_step"] == pytest.approx(4096 * 256 * 9 / 16, rel=0.01)  # 4.5 bits a weight
    in_layers = [part for name, part in parts.items() if name not in ("embedding", "lm_head", "draw")]
    if backend == "cuda":
        assert float(title[1]) == pytest.approx(sum(part["kernels_per_step"] for part in in_layers) / 6, abs=0.06)
        assert parts["qkv"]["kernels_per_step"] >= parts["qkv"]["calls_per_step"]
    else:
        assert not any(part["kernels_per_step"] for part in parts.values())


def test_bad_options(tercet, model):
    for options in (["-p", "x"], ["-n", "-5"], ["-o", "xml"]):
        result = tercet("bench", model, *options)
        assert result.returncode in (1, 2) and result.stderr.startswith("tercet: error: ")


def test_what_no_memory_holds_is_refused_before_it_is_read(tercet):
    result = tercet("bench", "synthetic:hy3", "-p", "0", "-n", "1", "-d", "262000", "--parallel", "4096")
    assert result.returncode == 1
    assert result.stderr.startswith("tercet: error: synthetic:hy3 needs 328954.92 GiB of memory (weights 154.59 GiB, ")
    assert result.stderr.endswith(" are available on this machine: even without a cache it does not fit\n") or (
        " tokens would fit\n" in result.stderr)


def test_verify_device(tercet):
    result = tercet("verify", "device", timeout=900)
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1].endswith(" passed, 0 failed")
