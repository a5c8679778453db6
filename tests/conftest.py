"""What the end-to-end tests share."""

import os
import subprocess

import pytest
from serving import PROGRAM, ROOT


@pytest.fixture(scope="session")
def full():
    """Whether what is exhaustive is to run too."""
    return os.environ.get("TERCET_FULL") == "1"


@pytest.fixture(scope="session")
def model():
    return str(ROOT / "models" / "hy3-tiny")


@pytest.fixture(scope="session")
def tercet():
    """tercet(ARGS…, stdin="…", env={…}) runs the program and returns its CompletedProcess, as text."""

    def run(*args, stdin="", env=None, timeout=600):
        return subprocess.run([PROGRAM, *map(str, args)], input=stdin,
                              env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout,
                              check=False)

    return run
