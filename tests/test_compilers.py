"""exact_math.h under both compilers: the source defines the bits, not the optimiser."""

import subprocess

import pytest
from conftest import ROOT

LEVELS = [("g++", "-O0"), ("clang++", "-O3"), ("g++", "-O3"), ("clang++", "-O0"), ("g++", "-O2"), ("clang++", "-O2"),
          ("g++", "-O3 -march=native"), ("clang++", "-O3 -march=native")]


@pytest.mark.parametrize("compiler, flags", LEVELS)
def test_exact_math_has_one_digest(tmp_path, full, compiler, flags):
    if not full and (compiler, flags) not in LEVELS[:2]:
        pytest.skip("./test --full tries every level")
    program = tmp_path / "digest"
    subprocess.run([compiler, "-std=c++20", *flags.split(), "-ffp-contract=off", "-I", ROOT / "src",
                    ROOT / "tools" / "exact_math_digest.cpp", "-o", program], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=False).stdout == "equal\n"
