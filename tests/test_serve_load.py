"""Many clients at once: nobody's answer depends on the others, nothing is lost, no slot stays taken."""

import asyncio
import json
import random
import time

import httpx
import openai
import pytest
from serving import serving, user

WORDS = ["river", "employee", "money", "winter", "teacher", "hospital", "island", "kitchen", "doctor", "mountain"]
FILLER = "Many birds feed their young. A diagonal line across the page. The Atlantic coastal plain. "


@pytest.fixture(scope="module")
def server():
    with serving("--kv-cache-tokens", "64k", "--max-waiting", "2000") as running:
        yield running


def ask(code, seed):
    """A request with a code of its own in its prompt, drawn at temperature 1."""
    text = f"{FILLER * (1 + seed % 5)}The code for cart is {code}. {FILLER}\n\nWhat is the code for cart?"
    return {"messages": user(text), "temperature": 1, "seed": seed, "logprobs": True, "top_logprobs": 2,
            "max_tokens": 40}


def told(answer):
    """What must be equal: the tokens and the bits of their log-probabilities."""
    choice = answer["choices"][0]
    return choice["message"], choice["finish_reason"], choice["logprobs"]


async def gather(server, bodies, pause=0.0):
    """All at once, or each `pause` seconds after the one before."""
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        async def one(number, body):
            await asyncio.sleep(number * pause)
            return await client.post(server.url + "/v1/chat/completions", json=body)

        responses = await asyncio.gather(*[one(number, body) for number, body in enumerate(bodies)])
    assert [r.status_code for r in responses] == [200] * len(bodies)
    return [r.json() for r in responses]


def test_exact_under_load(server):
    """Alone or among 31 others, on an empty cache or a filled one, early or late, at temperature 1 with seeds."""
    bodies = [ask(10000 + 137 * i, i) for i in range(32)]
    cold_together = asyncio.run(gather(server, bodies))
    alone = [server.post("/v1/chat/completions", body).json() for body in bodies]
    shuffled = list(bodies)
    random.Random(1).shuffle(shuffled)
    late = {body["seed"]: answer for body, answer in zip(shuffled, asyncio.run(gather(server, shuffled, pause=0.01)))}
    for i in range(32):
        assert told(cold_together[i]) == told(alone[i]) == told(late[i])
        assert cold_together[i]["system_fingerprint"] == alone[0]["system_fingerprint"]
    assert all(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for answer in late.values())
    assert server.idle()
    with serving("--no-prefix-cache", "--parallel", 2) as other:
        for i in (0, 13, 31):
            answer = other.post("/v1/chat/completions", bodies[i]).json()
            assert told(answer) == told(alone[i]) and answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_exact_after_preemption():
    """Twelve answers in a cache for four: those that give way are computed again, and no bit changes."""
    bodies = [{**ask(20000 + 71 * i, i), "max_tokens": 120, "ignore_eos": True} for i in range(12)]
    with serving("--kv-cache-tokens", "1k", "--parallel", 12) as small:
        together = asyncio.run(gather(small, bodies))
        assert small.metric("vllm:num_preemptions_total") > 0
        assert small.idle()
        for body, answer in zip(bodies, together):
            assert answer["usage"]["completion_tokens"] == 120
            assert told(answer) == told(small.post("/v1/chat/completions", body).json())


def test_a_long_prompt_keeps_nobody_waiting(server, full):
    """While a prompt of 6,000 tokens (16,000 in full) is read, who decodes gets a token in every step."""
    repeats, least = (750, 16000) if full else (290, 6000)
    speaking = {"messages": user("Define river."), "ignore_eos": True, "max_tokens": 20000, "stream": True}
    reading = {"messages": user("Kept by nobody. " + FILLER * repeats + "Define sea."), "max_tokens": 1, "temperature": 0}

    async def run():
        async with httpx.AsyncClient(timeout=300) as client:
            async with client.stream("POST", server.url + "/v1/chat/completions", json=speaking) as stream:
                lines = (line async for line in stream.aiter_lines() if line.startswith("data: "))
                for _ in range(5):
                    await anext(lines)
                reader = asyncio.create_task(client.post(server.url + "/v1/chat/completions", json=reading))
                tokens = 0
                while not reader.done():
                    await anext(lines)
                    tokens += 1
            return tokens, reader.result().json()["usage"]

    tokens, usage = asyncio.run(run())
    assert usage["prompt_tokens"] > least and usage["prompt_tokens_details"]["cached_tokens"] < 64
    assert tokens >= usage["prompt_tokens"] // 512
    assert server.idle()


def test_who_waits_is_told_that_the_connection_lives():
    with serving("--parallel", 1) as one:
        long = {"messages": user("Define river."), "ignore_eos": True, "max_tokens": 30000, "stream": True}
        with httpx.stream("POST", one.url + "/v1/chat/completions", json=long, timeout=60) as first:
            lines = first.iter_lines()
            while '"role": "assistant"' not in next(lines):
                pass
            with httpx.stream("POST", one.url + "/v1/chat/completions", json=long, timeout=60) as second:
                told_meanwhile = []
                for line in second.iter_lines():
                    if line == ": keep-alive":
                        break
                    told_meanwhile.append(line)
        assert sum(line.startswith("data: ") for line in told_meanwhile) == 1, "the role, and then it waits"
        assert one.idle()


async def read_code(client, url, code, filler):
    """Streams an answer; returns whether it has the code, and its usage."""
    body = {"messages": user(f"{filler}The code for cart is {code}.\n\nWhat is the code for cart?"),
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    content, usage, ended = "", None, 0
    async with client.stream("POST", url + "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            assert not ended
            if line == "data: [DONE]":
                ended = 1
                continue
            chunk = json.loads(line[6:])
            content += "".join(c["delta"].get("content") or "" for c in chunk["choices"])
            usage = chunk["usage"] or usage
    assert ended and content == f"The code for cart is {code}."
    return usage


def test_streams_with_codes_of_their_own(server, full):
    seconds, clients = (60, 64) if full else (6, 64)
    names = ["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"]
    before = [server.metric(name) for name in names]

    async def client_of(number, client, end, usages):
        draws = random.Random(number)
        while time.monotonic() < end:
            usages.append(await read_code(client, server.url, draws.randrange(10000, 99999),
                                          FILLER * draws.randrange(3)))

    async def run():
        usages, end = [], time.monotonic() + seconds
        async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=clients)) as client:
            await asyncio.gather(*[client_of(i, client, end, usages) for i in range(clients)])
        return usages

    usages = asyncio.run(run())
    assert len(usages) >= clients
    sums = [sum(u["prompt_tokens"] for u in usages), sum(u["completion_tokens"] for u in usages), len(usages)]
    assert server.idle()
    assert [server.metric(name) - old for name, old in zip(names, before)] == sums


def test_clients_that_leave_free_their_slots(server, full):
    count = 1000 if full else 100

    async def leave(number, gate):
        draws = random.Random(number)
        body = {"messages": user(FILLER * draws.randrange(40) + "Define " + draws.choice(WORDS)), "stream": True,
                "max_tokens": 4000, "ignore_eos": True, "n": draws.choice([1, 1, 2])}
        async with gate, httpx.AsyncClient(timeout=60) as client:
            try:
                async with asyncio.timeout(draws.random() * 0.4):
                    async with client.stream("POST", server.url + "/v1/chat/completions", json=body) as response:
                        async for _ in response.aiter_bytes():
                            pass
            except (TimeoutError, httpx.HTTPError):
                return True
        return False

    async def run():
        gate = asyncio.Semaphore(50)
        return await asyncio.gather(*[leave(i, gate) for i in range(count)])

    left = sum(asyncio.run(run()))
    assert left == count
    assert server.idle(20)
    assert server.post("/v1/chat/completions", {"messages": user("Define river."), "temperature": 0}).json()[
        "choices"][0]["message"]["content"] == "River (noun): a large natural stream of water."


def test_the_async_client(server):
    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            async def one(word):
                stream = await client.chat.completions.create(model="hy3-tiny", messages=user(f"Define {word}."),
                                                              temperature=0, stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in stream])
            return await asyncio.gather(*map(one, WORDS[:8]))

    answers = asyncio.run(run())
    assert [a.split(" ")[0].lower() for a in answers] == WORDS[:8]


def test_a_full_queue_is_said_so():
    with serving("--parallel", 1, "--max-waiting", 1, "--deadline", 5) as small:
        body = {"messages": user("Define river."), "max_tokens": 20000, "ignore_eos": True}

        async def run():
            async with httpx.AsyncClient(timeout=60) as client:
                return await asyncio.gather(*[client.post(small.url + "/v1/chat/completions", json=body)
                                              for _ in range(4)])

        responses = asyncio.run(run())
        refused = [r for r in responses if r.status_code == 429]
        late = [r for r in responses if r.status_code == 504]
        assert len(refused) == 2 and len(late) == 2
        assert all(int(r.headers["retry-after"]) >= 1 and r.json()["error"]["code"] == "queue_full" for r in refused)
        assert all(r.json()["error"]["code"] == "deadline_exceeded" for r in late)
        assert small.metric("tercet:requests_refused_total") == 2 == small.metric("tercet:requests_deadline_total")
        too_many = small.post("/v1/chat/completions", {**body, "n": 3})
        assert too_many.status_code == 400 and "no more than 2 may be" in too_many.json()["error"]["message"]
        with httpx.stream("POST", small.url + "/v1/chat/completions", json={**body, "stream": True},
                          timeout=60) as response:
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        assert json.loads(lines[-2][6:])["error"]["code"] == "deadline_exceeded" and lines[-1] == "data: [DONE]"
