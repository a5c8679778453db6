"""tercet bench and verify device: what they print, never how fast."""

import csv
import io
import json

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
