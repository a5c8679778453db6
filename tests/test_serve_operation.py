"""Who may ask, how the server starts and ends, and what HTTP it survives."""

import json
import os
import signal
import ssl
import subprocess
import threading
import time

import httpx
import pytest
from serving import MODEL, PROGRAM, raw, serving, user

LONG = {"messages": user("Define river."), "max_tokens": 30000, "ignore_eos": True}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("from-file\n\nalso-from-file\n")
    env = {**os.environ, "TERCET_API_KEY": "from-environment"}
    with serving("--api-key", "given", "--api-key-file", keys, "--cors", "https://example.org", "--strict",
                 "--log-prompts", "--alias", "one", "--alias", "two", "--reasoning-field", "both", "--max-body", "1M",
                 env=env) as running:
        yield running


def test_keys_guard_all_but_health(guarded):
    assert guarded.get("/health").status_code == 200
    for path in ["/", "/ready", "/metrics", "/props", "/v1/models", "/nothing"]:
        response = guarded.get(path)
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key", path
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/kl"]:
        assert guarded.post(path, {}).status_code == 401
    refused = guarded.post("/v1/messages", {})
    assert refused.status_code == 401 and refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "authentication_error"
    for key in ["given", "from-file", "also-from-file", "from-environment"]:
        assert guarded.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert guarded.get("/v1/models", headers={"X-Api-Key": key}).status_code == 200
        assert guarded.get("/", auth=("anyone", key)).status_code == 200
    for header in ["Bearer", "Bearer Given", "Bearer given?", "given", "Basic Z2l2ZW4="]:
        assert guarded.get("/v1/models", headers={"Authorization": header}).status_code == 401


def test_pages_of_other_sites(guarded):
    key = {"Authorization": "Bearer given"}
    response = guarded.get("/v1/models", headers={**key, "Origin": "https://evil.example"})
    assert response.status_code == 403 and "access-control-allow-origin" not in response.headers
    response = guarded.get("/v1/models", headers={**key, "Origin": "https://example.org"})
    assert response.status_code == 200 and response.headers["access-control-allow-origin"] == "https://example.org"
    assert guarded.get("/v1/models", headers={**key, "Origin": guarded.url}).status_code == 200
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    response = httpx.options(guarded.url + "/v1/chat/completions", headers=asked)
    assert response.status_code == 204 and "POST" in response.headers["access-control-allow-methods"]


def test_strict_names_and_fields(guarded):
    key = {"Authorization": "Bearer given"}
    response = guarded.post("/v1/chat/completions", {"messages": user("x"), "mirostat": 2}, headers=key)
    assert response.status_code == 400 and response.json()["error"]["param"] == "mirostat"
    for path, asked in [("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"}),
                        ("/v1/messages", {"messages": user("x"), "max_tokens": 1})]:
        response = guarded.post(path, {**asked, "mirostat": 2}, headers=key)
        assert response.status_code == 400 and "mirostat" in response.json()["error"]["message"], path
    asked = {"model": "two", "messages": user("What is 9 + 8?"), "temperature": 0, "reasoning_effort": "low"}
    message = guarded.post("/v1/chat/completions", asked, headers=key).json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] != ""


def test_the_log_has_ids_and_bodies_where_asked(guarded):
    key = {"Authorization": "Bearer given", "X-Request-Id": "my-own.id:1"}
    response = guarded.post("/v1/completions", {"prompt": "A secret", "max_tokens": 2}, headers=key)
    assert response.headers["x-request-id"] == "my-own.id:1"
    while not (lines := [entry for entry in guarded.log if entry["id"] == "my-own.id:1"]):
        time.sleep(0.01)
    (line,) = lines
    assert line["status"] == 200 and line["path"] == "/v1/completions" and line["completion_tokens"] == 2
    assert json.loads(line["body"])["prompt"] == "A secret" and line["client"] == "127.0.0.1"
    odd = guarded.get("/health", headers={"X-Request-Id": "no spaces, please"})
    assert odd.headers["x-request-id"].startswith("req-")


def test_what_http_it_survives(guarded):
    assert b"400 Bad Request" in raw(guarded, b"this is no HTTP\r\n\r\n")
    hosts = raw(guarded, b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
    assert b"400 Bad Request" in hosts and b"the request names more than one host" in hosts
    assert b"431 " in raw(guarded, b"GET /health HTTP/1.1\r\nX: " + b"a" * 100000 + b"\r\n\r\n")
    assert b"404 Not Found" in raw(guarded, b"GET /nothing HTTP/1.1\r\nX-Api-Key: given\r\nConnection: close\r\n\r\n")
    old = raw(guarded, b"GET /health HTTP/1.0\r\n\r\n")
    assert old.startswith(b"HTTP/1.1 200 OK") and b"Connection: close" in old
    packed = b"POST /v1/completions HTTP/1.1\r\nX-Api-Key: given\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
    assert b"415 Unsupported Media Type" in raw(guarded, packed)
    two = raw(guarded, b"GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert two.count(b"HTTP/1.1 200 OK") == 2
    head = raw(guarded, b"HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK") and head.endswith(b"\r\n\r\n")


def test_names_of_others_for_this_machine():
    """DNS rebinding: a site's own page, once its name leads to 127.0.0.1."""
    with serving("--cors", "https://good.example") as server:
        for host in (f"localhost:{server.port}", "good.example"):
            assert server.get("/v1/models", headers={"Host": host}).status_code == 200
        evil = {"Host": f"evil.example:{server.port}", "Origin": f"http://evil.example:{server.port}"}
        response = server.post("/v1/completions", {"prompt": "x"}, headers=evil)
        assert response.status_code == 403 and response.json()["error"]["code"] == "host_not_permitted"


def test_a_log_that_nobody_reads():
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen([PROGRAM, "serve", MODEL, "--port", "0"], stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        url = next(line.split()[-1] for line in process.stderr if "listening on" in line)
        for _ in range(5):
            assert httpx.get(url + "/health").status_code == 200
        process.kill()


def test_bodies_that_are_too_long(guarded):
    key = {"Authorization": "Bearer given"}
    big = b'{"prompt": "' + b"a" * (10 << 20) + b'"}'
    response = httpx.post(guarded.url + "/v1/completions", content=big, headers=key, timeout=60)
    assert response.status_code == 413 and "longer than 1048576 bytes" in response.json()["error"]["message"]
    response = httpx.post(guarded.url + "/v1/completions", content=iter([big[: 1 << 19]] * 4), headers=key, timeout=60)
    assert response.status_code == 413
    response = httpx.post(guarded.url + "/v1/completions", content=big, timeout=60)
    assert response.status_code == 401


@pytest.mark.parametrize("options, words", [
    (["--host", "0.0.0.0"], "could call without a key"),
    (["--host", "example.org", "--allow-public"], "expected the number of an interface"),
    (["--tls-cert", "c.pem"], "belong together"),
    (["--tls-cert", "/nothing.pem", "--tls-key", "/nothing.pem"], "no certificate in PEM form"),
    (["--api-key-file", "/nothing.txt"], "cannot be read"),
    (["--api-key", ""], "must not be empty"),
    (["--ctx", "1M"], "was made for 32768 tokens"),
    (["--cors", "example.org"], "expected a site like https://example.org, without a path, or *; found example.org"),
    (["--cors", "https://example.org/"], "found https://example.org/"),
    (["--alias", ""], "--alias: a name must not be empty"),
])
def test_options_that_will_not_do(tercet, model, options, words):
    result = tercet("serve", model, "--port", 0, *options)
    assert result.returncode == 1 and words in result.stderr


def test_a_model_that_is_not_there(tercet, tmp_path):
    """Nobody is told to wait for it."""
    result = tercet("serve", tmp_path / "nothing", "--port", 0)
    assert result.returncode == 1 and result.stderr == f"tercet: error: {tmp_path / 'nothing'}: no such file or directory\n"


def test_a_port_that_is_taken(tercet, model, guarded):
    result = tercet("serve", model, "--port", guarded.port)
    assert result.returncode == 1 and f"cannot listen on 127.0.0.1 port {guarded.port}" in result.stderr


def test_tls(tmp_path):
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                    "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    with serving("--tls-cert", certificate, "--tls-key", key, scheme="https") as server:
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=context, base_url=server.url, timeout=60) as client:
            body = {"messages": user("Define river."), "temperature": 0, "stream": True}
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                assert "data: [DONE]" in list(response.iter_lines())
            assert client.get("/health").json() == {"status": "ok"}
        assert server.stop() == 0


def in_background(server, body, results):
    def run():
        try:
            results.append(server.post("/v1/chat/completions", body))
        except httpx.HTTPError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while server.get("/props").json()["running"] == 0:
        time.sleep(0.01)
    return thread


def test_a_signal_lets_answers_end_and_refuses_others():
    with serving() as server:
        results = []
        thread = in_background(server, {**LONG, "max_tokens": 600}, results)
        assert server.stop() == 0
        thread.join()
        assert results[0].status_code == 200 and results[0].json()["usage"]["completion_tokens"] == 600
        assert results[0].headers["connection"] == "close"


def test_draining_has_a_limit_and_a_second_signal_ends_at_once():
    with serving("--drain", 0.3) as server:
        results = []
        thread = in_background(server, LONG, results)
        assert server.stop() == 0
        thread.join()
        assert results[0].status_code == 503 and results[0].json()["error"]["code"] == "shutting_down"
    with serving("--drain", 1000) as server:
        results = []
        thread = in_background(server, LONG, results)
        server.process.send_signal(signal.SIGTERM)
        while not any("second signal" in line for line in server.messages):
            time.sleep(0.01)
        assert server.stop() == -signal.SIGTERM
        thread.join()
        assert isinstance(results[0], httpx.HTTPError)


def test_a_signal_while_loading_ends_at_once(tmp_path):
    for file in MODEL.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer.json").unlink()
    os.mkfifo(tmp_path / "tokenizer.json")  # nobody writes to it, so loading never ends
    with serving(model=tmp_path, wait=False) as server:
        assert server.get("/health").status_code == 200
        assert server.get("/ready").status_code == 503 and server.get("/ready").json() == {"status": "loading"}
        response = server.post("/v1/completions", {"prompt": "x"})
        assert response.status_code == 503 and response.json()["error"]["code"] == "loading"
        assert server.stop() == -signal.SIGTERM
