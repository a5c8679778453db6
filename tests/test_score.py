"""The golden digests and the distance from float32, by `tercet score`."""

import json
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

GOLDEN = ROOT / "models" / "hy3-tiny-golden.safetensors"
DIGESTS = json.loads((ROOT / "verify" / "golden_digests.json").read_text())
PROMPTS = ROOT / "tests" / "cases" / "short_prompts.safetensors"


def digests(output):
    return dict(line.split() for line in output.splitlines() if re.fullmatch(r"\w+\.\d+ [0-9a-f]{64}", line))


def divergence(tercet, a, b):
    result = tercet("score", "compare", a, b)
    assert result.returncode == 0, result.stderr
    kl = re.search(r"mean (\S+), median (\S+), 99th percentile (\S+), maximum", result.stdout)
    sure = re.search(r"nat sure: (\d+) of (\d+)", result.stdout)
    return *map(float, kl.groups()), *map(int, sure.groups())


@pytest.fixture(scope="module")
def tiny(tercet, model, tmp_path_factory):
    """One run over all golden tokens: its digests and its file."""
    out = tmp_path_factory.mktemp("score") / "mine.safetensors"
    result = tercet("score", model, GOLDEN, "--mtp", "--digest", "--out", out, timeout=1800)
    assert result.returncode == 0, result.stderr
    return digests(result.stdout), out


def test_tiny_has_the_golden_digests(tiny):
    assert tiny[0] == DIGESTS["models/hy3-tiny"]


def test_the_reference_has_them_too(tercet, model):
    result = tercet("score", model, GOLDEN, "--mtp", "--digest", "--backend", "reference", timeout=1800)
    assert result.returncode == 0, result.stderr
    assert digests(result.stdout) == DIGESTS["models/hy3-tiny"]


def test_tiny_is_near_float32(tercet, tiny):
    mean, median, p99, equal, sure = divergence(tercet, f"{GOLDEN}:4bit", tiny[1])
    assert sure == 9350 and equal >= 9348
    assert mean <= 0.0006 and median <= 1e-6 and p99 <= 0.003


def test_mtp_is_near_float32(tercet, tiny):
    mean, median, p99, _, _ = divergence(tercet, f"{GOLDEN}:mtp", f"{tiny[1]}:mtp")
    assert mean <= 0.004 and median <= 2e-5 and p99 <= 0.03


def test_bf16_twin_is_near_float32(tercet, model, tmp_path):
    """A Hugging Face checkpoint made of hy3-tiny: every matrix dequantised and rounded to bf16."""
    twin, out = tmp_path / "bf16", tmp_path / "bf16.safetensors"
    writer = ROOT / "build" / "release" / "tools" / "tercet_write_checkpoint"
    subprocess.run([writer, "bf16", model, twin, "--shards", "3"], check=True)
    result = tercet("score", twin, GOLDEN, "--out", out, timeout=1800)
    assert result.returncode == 0, result.stderr
    assert divergence(tercet, f"{GOLDEN}:bf16", out)[0] <= 0.0012


def skip_without_gpu():
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA GPU on this machine")


def test_tiny_has_the_golden_digests_on_a_gpu(tercet, model):
    skip_without_gpu()
    result = tercet("score", model, GOLDEN, "--mtp", "--digest", "--backend", "cuda", timeout=1800)
    assert result.returncode == 0, result.stderr
    assert digests(result.stdout) == DIGESTS["models/hy3-tiny"]


def test_a_missing_gpu_is_one_clear_error(tercet, model):
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("this machine has a GPU")
    result = tercet("score", model, PROMPTS, "--backend", "cuda")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert re.search(r"--backend cuda: (no NVIDIA driver is installed|CUDA: |this program was built without CUDA)",
                     result.stderr)


@pytest.mark.parametrize("backend", ["cpu", "reference", "cuda"])
@pytest.mark.parametrize("name", [name for name in DIGESTS if name.startswith("synthetic:")])
def test_true_shapes_have_the_golden_digests(tercet, full, name, backend):
    if backend == "cuda":
        skip_without_gpu()
    if not full and name in ("synthetic:hy3:4", "synthetic:hy-mt2-30b:6"):
        pytest.skip("needs 16 GB of memory: ./test --full")
    wanted = DIGESTS[name]
    mtp = ["--mtp"] if any(key.startswith("mtp") for key in wanted) else []
    result = tercet("score", name, PROMPTS, "--digest", "--backend", backend, *mtp)
    assert result.returncode == 0, result.stderr
    assert digests(result.stdout) == wanted


@pytest.mark.parametrize("options", [["--chunk", "5"], ["--pp", "2", "--tp", "2"], ["-t", "1"]])
def test_digests_by_any_way(tercet, options):
    name = "synthetic:hy-mt2-30b:3"
    result = tercet("score", name, PROMPTS, "--digest", *options)
    assert result.returncode == 0, result.stderr
    assert digests(result.stdout) == DIGESTS[name]


def write_safetensors(path, tensors):
    """{name: (dtype, shape, bytes)}"""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("tensors, wanted", [
    ({"x": ("I32", [1], bytes(4))}, "nothing to score"),
    ({"tokens.0": ("F32", [1], bytes(4))}, "expected I16 or I32, found F32"),
    ({"tokens.0": ("I32", [1], (4096).to_bytes(4, "little"))}, "token 4096 at position 0: expected 0 to 4095"),
    ({"tokens.0": ("I16", [2, 1], bytes(4))}, "expected one dimension"),
])
def test_bad_token_files(tercet, model, tmp_path, tensors, wanted):
    result = tercet("score", model, write_safetensors(tmp_path / "bad.safetensors", tensors))
    assert result.returncode == 1
    assert wanted in result.stderr and result.stderr.count("\n") == 1


def test_a_sequence_longer_than_the_context_is_refused(tercet, model, tmp_path):
    three = write_safetensors(tmp_path / "three.safetensors", {"tokens.0": ("I32", [3], bytes(12))})
    assert tercet("score", model, three, "-c", "3").returncode == 0
    result = tercet("score", model, three, "-c", "2")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "a sequence of 3 tokens; --ctx-size allows 2" in result.stderr


def test_bad_files_to_compare(tercet, tmp_path):
    result = tercet("score", "compare", GOLDEN, GOLDEN)
    assert result.returncode == 1 and "the file has: 4bit, bf16, mtp" in result.stderr
    one = write_safetensors(tmp_path / "one.safetensors", {
        "main.0.ids": ("I32", [1, 2], bytes(8)), "main.0.logprobs": ("F32", [1, 2], bytes(8))})
    result = tercet("score", "compare", f"{GOLDEN}:4bit", one)
    assert result.returncode == 1 and "4593 positions in the first file, 1 in the second" in result.stderr


def test_sixteen_bit_tokens_are_read_too(tercet, model, tmp_path):
    wide = write_safetensors(tmp_path / "wide.safetensors", {"tokens.0": ("I32", [3], b"\x05\0\0\0\x06\0\0\0\x07\0\0\0")})
    narrow = write_safetensors(tmp_path / "narrow.safetensors", {"tokens.0": ("I16", [3], b"\x05\0\x06\0\x07\0")})
    first, second = (tercet("score", model, file, "--digest") for file in (wide, narrow))
    assert first.returncode == second.returncode == 0
    assert first.stdout == second.stdout


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tercet, model, tmp_path):
    result = tercet("score", model, GOLDEN, "--out", tmp_path / "none" / "x", timeout=60)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{tmp_path}/none/x: cannot be created: No such file or directory" in result.stderr
    assert tercet("score", model, tmp_path / "none", "--out", tmp_path / "mine", timeout=60).returncode == 1
    assert not (tmp_path / "mine").exists()
