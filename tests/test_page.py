"""The chat page in a real browser: headless Chromium over a real server."""

import json
import os
import re
import signal
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait
from serving import serving

WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]}}}]


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1000,800",
                     "--disable-background-networking", "--disable-component-update", "--no-first-run",
                     *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def server():
    with serving("--parallel", 4) as running:
        yield running


class Page:
    """The page as a person uses it."""

    def __init__(self, browser, url):
        self.browser = browser
        browser.get_log("browser"), browser.get_log("performance")
        browser.set_window_size(1000, 800)
        browser.get(url)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """As in the document, whether or not it is in sight."""
        return self.one(selector).get_property("textContent")

    def until(self, condition, seconds=30):
        return WebDriverWait(self.browser, seconds, poll_frequency=0.05).until(lambda _: condition())

    def set(self, name, value):
        self.browser.execute_script("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))

    def note_all(self):
        """From here on, notes() has everything that any note has said."""
        self.browser.execute_script("""
            window.said = [];
            new MutationObserver(() => document.querySelectorAll(".note").forEach(note => said.push(note.textContent)))
                .observe(document.getElementById("log"), {childList: true, subtree: true, characterData: true});""")

    def notes(self):
        return self.browser.execute_script("return said")

    def think(self, effort):
        Select(self.one("#effort")).select_by_visible_text(effort)

    def send(self, text):
        """Types and sends; the answer is at its end when this returns."""
        self.start(text)
        self.done()

    def start(self, text):
        self.one("#input").send_keys(text, Keys.ENTER)

    def done(self):
        self.until(lambda: self.one("#send").is_displayed())

    def answer(self):
        return self.text("article:last-child .content")

    def errors(self):
        """What the console has of errors and warnings."""
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """The addresses that were asked since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


@pytest.fixture
def page(browser, server):
    opened = Page(browser, server.url + "/")
    opened.set("temperature", 0)
    yield opened
    assert opened.errors() == []
    addresses = opened.requests()
    assert addresses and all(one.startswith((server.url + "/", "data:")) for one in addresses)


def test_an_answer_streams(page, server):
    page.until(lambda: page.text("#model") == "hy3-tiny")
    assert page.browser.title == "hy3-tiny · Tercet" and page.one("#empty").is_displayed()
    page.send("Define river.")
    assert page.answer() == "River (noun): a large natural stream of water." and not page.all("#empty")
    assert len(page.all(".content .token")) > 5, "piece by piece"
    assert page.text(".user > div") == "Define river."
    note = re.fullmatch(r"(\d+) tokens read \((\d+) of them cached\) at [\d.]+ a second, (\d+) written at [\d.]+ a second",
                        page.text("article:last-child .note"))
    assert note and int(note[3]) > 5
    page.send("What is 17 + 25?")
    assert "42" in page.answer() and len(page.all("article")) == 4
    assert server.metric("vllm:request_success_total") >= 2


def test_a_thought_is_folded(page):
    page.think("low")
    page.send("What is 27 + 58?")
    assert page.answer() == "The answer is 85."
    assert page.text("summary") == "Thought" and page.text("details > div").strip()
    assert not page.one("details > div").is_displayed()
    page.one("summary").click()
    assert page.one("details > div").is_displayed()


def test_a_call_is_shown_and_its_result_answered(page):
    page.one("#settings-button").click()
    page.one("#tools").send_keys("[")
    assert page.one("#tools-error").is_displayed() and "JSON" in page.text("#tools-error")
    page.one("#tools").clear()
    page.one("#tools").send_keys(json.dumps(WEATHER))
    assert not page.one("#tools-error").is_displayed()
    page.one("#settings-button").click()
    page.send("What is the weather in Tokyo for the next 3 days?")
    assert page.text(".call") == 'get_weather({"city": "Tokyo", "days": 3})' and page.text(".call b") == "get_weather"
    assert page.one("#input").get_attribute("placeholder") == "Result of get_weather"
    page.send('{"temperature": -12, "sky": "cloudy"}')
    assert page.answer() == "In Tokyo it is -12 degrees with cloudy sky."
    assert page.text("article:nth-child(3) .note") == "result of get_weather"


def test_pointing_at_a_token_shows_how_probable_it_was(page):
    page.send("Define river.")
    tip = page.one("#tip")
    assert not tip.is_displayed()
    token = page.all(".content .token")[1]
    ActionChains(page.browser).move_to_element(token).perform()
    page.until(tip.is_displayed)
    assert json.loads(page.text("#tip p.drawn span:last-child")) == token.get_property("textContent")
    shares = [float(re.match(r"\s*([\d.]+) %", row.text)[1]) for row in page.all("#tip p")]
    assert len(shares) in (5, 6) and shares == sorted(shares, reverse=True) and 90 < sum(shares) <= 100.03
    ActionChains(page.browser).move_to_element(page.one("header")).perform()
    page.until(lambda: not tip.is_displayed())


def long_message(server):
    """A text that takes seconds to read."""
    words = "river " * 100
    return "river " * (100 * 20000 // server.post("/tokenize", {"content": words}).json()["count"])


def test_stop_frees_the_place(page, server):
    page.set("input", long_message(server))
    page.one("#input").send_keys(Keys.ENTER)
    page.until(lambda: re.fullmatch(r"reading the prompt: \d+ of \d+ tokens", page.text("article:last-child")))
    assert server.get("/props").json()["running"] == 1
    page.one("#stop").click()
    page.done()
    assert page.text("article:last-child .note") == "0 tokens; stopped" and not page.one("#stop").is_displayed()
    assert server.idle(10), "the place is free"
    page.one("#new").click()
    assert page.all("article") == [] and page.one("#empty").is_displayed()
    assert not page.one("#retry").is_enabled()


def test_retry_answers_again(page):
    page.set("system", "Answer in capital letters.")
    page.send("Define river.")
    assert page.answer() == page.answer().upper() != ""
    page.set("system", "")
    page.one("#retry").click()
    page.done()
    assert page.answer() == "River (noun): a large natural stream of water." and len(page.all("article")) == 2


def test_rates_and_the_caches_state_are_live(browser):
    with serving("--kv-cache-tokens", 32768) as own:
        page = Page(browser, own.url + "/")
        page.until(lambda: page.text("#load").startswith("0 running, 0 waiting; cache: 0 pages in use, 0 kept"))
        page.set("temperature", 0)
        page.note_all()
        page.send("Define river.")
        live = [note for note in page.notes() if re.fullmatch(r"\d+ tokens, [\d.]+ a second", note)]
        counts = [int(note.split()[0]) for note in live]
        assert len(set(counts)) > 3 and counts == sorted(counts), live
        page.set("input", long_message(own))
        page.one("#input").send_keys(Keys.ENTER)
        page.until(lambda: re.match(r"1 running, 0 waiting; cache: [1-9]\d* pages in use", page.text("#load")))
        assert float(page.one("#cache i").value_of_css_property("width").removesuffix("px")) > 0
        page.one("#input").send_keys(Keys.ESCAPE)
        page.until(lambda: re.match(r"0 running, 0 waiting; cache: 0 pages in use, [1-9]\d* kept", page.text("#load")))
        assert page.errors() == []


def test_it_works_with_a_key_until_the_server_is_gone(browser):
    with serving("--api-key", "secret") as own:
        page = Page(browser, own.url.replace("//", "//me:secret@") + "/")
        page.set("temperature", 0)
        page.send("Define river.")
        assert page.answer() == "River (noun): a large natural stream of water." and page.errors() == []
        own.stop(signal.SIGKILL)
        page.send("Define river.")
        assert page.text("article:last-child .error") == "The server cannot be reached."
        page.until(lambda: page.text("#load") == "The server cannot be reached.")


def test_it_fits_a_narrow_window(page):
    page.browser.set_window_size(400, 700)
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                 {"width": 400, "height": 700, "deviceScaleFactor": 1, "mobile": False})
    try:
        page.one("#settings-button").click()
        page.one("#settings-button").click()
        page.send("Define river.")
        assert page.browser.execute_script("return document.documentElement.scrollWidth") <= 400
        for selector in ["#input", "#send", "#retry", "#new", "#settings-button", "#effort", "article:last-child .content"]:
            element = page.one(selector)
            box = element.rect
            assert element.is_displayed() and box["x"] >= 0 and box["x"] + box["width"] <= 400, selector
            assert box["y"] + box["height"] <= 700, selector
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>&amp;"


@contextmanager
def stand_in(server, stream):
    """The same page before a server that answers every chat with `stream`."""
    html = server.get("/").content
    props = server.get("/props").json()
    props["model_alias"] = "<b>model</b>"

    class Handler(BaseHTTPRequestHandler):
        def reply(self, body, kind):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.reply(*((json.dumps(props).encode(), "application/json") if self.path == "/props" else
                         (html, "text/html; charset=utf-8")))

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(stream.encode(), "text/event-stream")

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def chunk(delta, tokens=(), finish=None):
    logprobs = {"content": [{"token": text, "id": 7, "logprob": -0.5, "bytes": [],
                             "top_logprobs": [{"token": text, "id": 7, "logprob": -0.5, "bytes": []}]} for text in tokens]}
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}) + "\n\n"


def test_what_a_model_writes_is_never_html(browser, server):
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    stream = (chunk({"reasoning_content": EVIL}) + chunk({"content": EVIL}, [EVIL]) + chunk({"tool_calls": [call]}) +
              chunk({}, finish="tool_calls") + "data: [DONE]\n\n")
    with stand_in(server, stream) as url:
        page = Page(browser, url)
        page.send(EVIL)
        assert page.text("article:last-child details > div") == page.answer() == page.text(".user > div") == EVIL
        assert page.text(".call") == f"{EVIL}({EVIL})" and page.text("#model") == "<b>model</b>"
        ActionChains(browser).move_to_element(page.one(".content .token")).perform()
        page.until(page.one("#tip").is_displayed)
        assert json.loads(page.text("#tip p.drawn span:last-child")) == EVIL
        assert page.all("article img, article script, #tip img, #tip script, h1 b") == []
        assert browser.title == "<b>model</b> · Tercet" and page.errors() == []


@pytest.mark.parametrize("end, words", [
    ('data: {"error": {"message": "the model met <b>NaN</b>", "type": "server_error"}}\n\ndata: [DONE]\n\n',
     "the model met <b>NaN</b>"),
    ("", "The connection ended before the answer did."),
    ("data: [DONE]\n\n", None)])
def test_how_a_stream_ends_is_told(browser, server, end, words):
    with stand_in(server, chunk({"content": "Half of"}) + end) as url:
        page = Page(browser, url)
        page.send("Hi")
        assert page.answer() == "Half of"
        assert [e.get_property("textContent") for e in page.all("article .error")] == ([words] if words else [])
        assert page.one("#retry").is_enabled()
