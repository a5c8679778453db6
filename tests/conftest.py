"""What the end-to-end tests share."""

import os
import subprocess

import openai
import pytest
from serving import serving, user
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


@pytest.fixture(scope="module")
def server():
    """A server of hy3-tiny, one for each file."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def chat(client):
    """chat(MESSAGES or text, …): greedy, without a thought unless told otherwise."""

    def ask(messages, **options):
        messages = user(messages) if isinstance(messages, str) else messages
        options = {"temperature": 0, "reasoning_effort": "none", **options}
        return client.chat.completions.create(model="hy3-tiny", messages=messages, **options)

    return ask
