"""The CPU backend's tests on 64-bit ARM: compiled for it here and run by qemu, with the dot product and without.

GoogleTest is compiled from Debian's sources; the parts that need other libraries are not among these sources."""

import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT

COMPILER = "aarch64-linux-gnu-g++"
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-DFMT_HEADER_ONLY", "-DTERCET_SOURCE_DIR=\"/\"",
         f"-I{ROOT / 'src'}", "-I/usr/src/googletest/googletest/include", "-I/usr/src/googletest/googlemock/include",
         "-I/usr/src/googletest/googletest", "-I/usr/src/googletest/googlemock"]
GOOGLE = ["googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc", "googlemock/src/gmock_main.cc"]
OTHER_PROCESSORS = re.compile(r"kernels_avx|level_x86|level_other|sha256")
# A processor of 2016 without the dot product, and everything that qemu knows; each with its fastest kernels.
PROCESSORS = {"cortex-a57": "neon", "max": "neon_dot"}


def sources():
    folders = ("base", "tensor", "ops", "backend/reference", "backend/cpu")
    files = [f for folder in folders for f in sorted((ROOT / "src" / folder).glob("*.cpp"))]
    own = [f for f in files if not OTHER_PROCESSORS.search(f.name)
           and (not f.name.endswith("_test.cpp") or f.parent.name == "cpu" or f.name.startswith("backend_"))]
    return own + [f"/usr/src/googletest/{name}" for name in GOOGLE]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm")
    launcher = ["ccache"] if shutil.which("ccache") else []

    def compile_one(numbered):
        number, source = numbered
        dot = ["-march=armv8.2-a+dotprod"] if "neon_dot" in str(source) else []
        to = folder / f"{number}.o"
        subprocess.run([*launcher, COMPILER, *FLAGS, *dot, "-c", source, "-o", to], check=True)
        return to

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compile_one, enumerate(sources())))
    linked = folder / "cpu_test"
    subprocess.run([COMPILER, "-static", *objects, "-o", linked], check=True)
    return linked


@pytest.mark.skipif(platform.machine() != "x86_64", reason="cpu_test itself runs on this machine's own processor")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_kernels_have_the_reference_s_bits(program, processor, full):
    level = PROCESSORS[processor]
    run = subprocess.run(["qemu-aarch64", "-cpu", processor, program, f"--gtest_filter={'*' if full else f'*/{level}'}"],
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert f"/{level} (" in run.stdout
