"""The page at ``/``: who gets it, what it may load, and that it works in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.support.gateway import Posted, gateway
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess
from umaserve.gateway.page import page

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
KEY = "a-key-of-the-page-1"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
# what makes elements, or a program, of a text
MARKUP_READERS = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "import(",
    "new Function", "DOMParser", "setHTML", "srcdoc", "createContextualFragment",
)  # fmt: skip


def get(port: int, path: str = "/", **headers: str) -> Posted:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers=named)
        return Posted(connection.getresponse())
    finally:
        connection.close()


def test_browsers_get_the_page_and_others_what_this_is() -> None:
    with gateway() as port:
        reply = get(port, accept=BROWSER)
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert reply.body == page()[0] and reply.headers["x-content-type-options"] == "nosniff"
        for accept in ("*/*", "application/json", ""):
            assert get(port, accept=accept).json["server"] == "umaserve"


def test_the_page_needs_no_key_and_nothing_else_goes_without() -> None:
    with gateway(keys={KEY: "page"}) as port:
        assert get(port, accept=BROWSER).status == 200
        assert get(port).status == get(port, "/metrics", accept=BROWSER).status == 401
        assert get(port, "//metrics", accept=BROWSER).status == 401
        foreign = {"Origin": "http://evil.example", "accept": BROWSER}
        assert get(port, **foreign).status == 403
        assert get(port, accept=BROWSER, Host="evil.example").status == 421


def test_the_page_loads_nothing_and_its_policy_names_its_parts() -> None:
    document, headers = page()
    text, policy = document.decode(), headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self';") and "unsafe" not in policy
    for element in ("script", "style"):
        (content,) = re.findall(f"<{element}[^>]*>(.*?)</{element}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    for word in MARKUP_READERS:
        assert word not in text
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.S)
    links = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'>\s]+)""", markup)
    assert set(links) == {"data:,", "/metrics/prometheus", "/openapi.json"}
    assert not re.search(r"""\s(on\w+|style)\s*=""", markup) and "url(" not in text
    asked = re.findall(r"""\b(?:ask|get|fetch)\(["']([^"']+)""", text)
    assert set(asked) == {
        "/health", "/metrics", "/models/load", "/requests", "/v1/chat/completions", "/v1/models",
            "x-uma-lane",
    }  # fmt: skip


def test_every_module_is_in_the_page_once_and_imports_what_is_there() -> None:
    folder = files("umaserve.gateway.page")
    script = Path(str(folder)) / "script"
    modules = {f"script/{p.relative_to(script).as_posix()}": p for p in script.rglob("*.js")}
    text = page()[0].decode()
    exports = {
        name: set(re.findall(r"^export .*?(?:function\*?|const|class) (\w+)", p.read_text(), re.M))
        for name, p in modules.items()
    }
    for name, path in modules.items():
        assert text.count(f'modules["{name}"] = ') == 1
        assert len(path.read_text("utf-8").splitlines()) <= 300
        for given, other in re.findall(r'^import \{(.*?)\} from "(.*?)";$', path.read_text(), re.M):
            found = posixpath.normpath(f"{posixpath.dirname(name)}/{other}")
            assert {each.strip() for each in given.split(",")} <= exports[found], name
    assert not re.search(r"^(import|export) ", text, re.M)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Its model answers with markup."""
    environment = {"FAKE_SAYS": HOSTILE, "FAKE_TICK_MS": "1"}
    path = tmp_path_factory.mktemp("daemon")
    with DaemonProcess(path, http="127.0.0.1:0", environment=environment) as daemon:
        yield daemon


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with Browser(tmp_path) as opened:
        yield opened


def test_a_chat_in_a_browser(daemon: DaemonProcess, browser: Browser) -> None:
    browser.open(f"http://127.0.0.1:{port_of(daemon)}/")
    model = daemon.info()["model"]["name"]
    browser.until(f"document.querySelector('#model').value === {json.dumps(model)}")
    browser.until("document.querySelector('#dot').className === 'ok'")
    browser.value("document.querySelector('#text').value = '<b>hello</b>[draft@2]'")
    browser.value("document.querySelector('#form').requestSubmit()")
    browser.until("document.querySelector('.facts')?.textContent.includes('tokens')")
    said = browser.value("document.querySelector('.assistant .text').textContent")
    assert said == HOSTILE
    asked = browser.value("document.querySelector('.user .text').textContent")
    assert asked == "<b>hello</b>[draft@2]"
    made = "document.querySelectorAll('#said img, #said script, #said b').length"
    assert browser.value(made) == 0
    assert browser.value("document.title") == "UMA Serve"
    browser.until("document.querySelector('#total').textContent.endsWith(' % of drafts')")
    total = browser.value("document.querySelector('#total').textContent")
    assert re.search(r" in all, [\d.]+ a tick, \d+ % of drafts$", total), total
    browser.until("!document.querySelector('#appcard').hidden")
    row = "[...document.querySelector('#apps').rows[0].cells].map((cell) => cell.textContent)"
    name, share, _, cached = browser.value(row)
    assert name == "web page" + "interactive" and share.endswith("%"), cached
    browser.until("!document.querySelector('#recentcard').hidden")
    row = "[...document.querySelector('#recent').rows[0].cells].map((cell) => cell.textContent)"
    name, known, first, _, tokens = browser.value(row)
    assert name == "web page" + "interactive" and first.endswith("ms"), first
    assert known.partition("/")[2].isdigit() and int(tokens) > 0
    browser.until("document.querySelector('#memory').textContent.includes('B')")
    assert browser.complaints() == []


def test_a_key_in_a_browser(daemon: DaemonProcess, browser: Browser) -> None:
    with gateway(daemon.path, keys={KEY: "page"}) as port:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.until("document.querySelector('#gone').textContent === 'An API key is needed.'")
        assert not browser.value("document.querySelector('#keys').hidden")
        browser.value(f"document.querySelector('#key').value = {json.dumps(KEY)}")
        browser.value("document.querySelector('#keys').requestSubmit()")
        browser.until("document.querySelector('#keys').hidden")
        browser.until("document.querySelector('#active').textContent !== '–'")
        # the key is in no place that the browser keeps
        browser.until("document.querySelector('#dot').className === 'ok'")
        browser.value("document.querySelector('#text').value = 'hello[stop@2]'")
        browser.value("document.querySelector('#form').requestSubmit()")
        browser.until("document.querySelector('.facts')?.textContent.includes('tokens')")
        browser.until("document.querySelector('#list .title')")
        stored = "localStorage.length + sessionStorage.length + document.cookie.length"
        assert browser.value(stored) == 0
        assert browser.value("indexedDB.databases().then(d => d.map(each => each.name))") == [
            "umaserve"
        ]
        kept = browser.value(
            "new Promise(done => indexedDB.open('umaserve').onsuccess = e => e.target.result"
            ".transaction('chats').objectStore('chats').getAll().onsuccess = e => "
            "done(JSON.stringify(e.target.result)))"
        )
        assert "hello[stop@2]" in kept and KEY not in kept
