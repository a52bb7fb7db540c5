"""Pages in a real browser that are not ours get nothing out of the gateway, and nothing into it.

All names are this machine's, as after DNS rebinding, so that no rule of the browser's own about
private networks stands before ours.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.support.http_client import ask, port_of
from tests.support.server_harness import DaemonProcess

NAMES = "MAP *.test 127.0.0.1,MAP * ~NOTFOUND,EXCLUDE 127.0.0.1,EXCLUDE localhost"
TEXT = json.dumps({"prompt": "from a page", "max_tokens": 2, "stream": False})

# what a page can try, each an expression that gives what it got to read of an answer
READING = {
    # first: nothing tells the page when it has arrived
    "beacon": "(navigator.sendBeacon(URL + '/generate', BODY), '')",
    "get": "fetch(URL + '/v1/models').then(r => r.text())",
    "json": "fetch(URL + '/generate', {method: 'POST', body: BODY, "
    "headers: {'content-type': 'application/json'}}).then(r => r.text())",
    "simple": "fetch(URL + '/generate', {method: 'POST', body: BODY}).then(r => r.text())",
    "credentials": "fetch(URL + '/metrics', {credentials: 'include'}).then(r => r.text())",
    "opaque": "fetch(URL + '/generate', {method: 'POST', body: BODY, mode: 'no-cors'})"
    ".then(r => r.text())",
    "request": "new Promise(done => { const x = new XMLHttpRequest(); x.open('GET', "
    "URL + '/health'); x.onloadend = () => done(x.responseText); x.send() })",
    "events": "new Promise(done => { const e = new EventSource(URL + '/metrics'); "
    "e.onmessage = m => done(m.data); e.onerror = () => { e.close(); done('') } })",
    "frame": "new Promise(done => { const f = document.createElement('iframe'); "
    "f.onload = () => { try { done(f.contentDocument.body.innerText) } catch { done('') } }; "
    "f.src = URL + '/v1/models'; document.body.append(f) })",
    "script": "new Promise(done => { const s = document.createElement('script'); "
    "s.onload = s.onerror = () => done(''); s.src = URL + '/v1/models'; document.body.append(s) })",
    "form": "new Promise(done => { const n = 'f' + Math.random(), f = document.createElement("
    "'iframe'), o = document.createElement('form'), i = document.createElement('input'); "
    "f.name = n; o.target = n; o.method = 'post'; o.enctype = 'text/plain'; "
    "o.action = URL + '/generate'; i.name = BODY.slice(0, -1) + ', \"x\": \"'; i.value = '\"}'; "
    "o.append(i); document.body.append(f, o); o.submit(); f.onload = () => { "
    "try { done(f.contentDocument.body.innerText) } catch { done('') } } })",
}


class Page(BaseHTTPRequestHandler):
    """An empty page of somebody else."""

    def do_GET(self) -> None:
        body = b"<!doctype html><body>somebody else's</body>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def page_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory, page_port: int
) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    origin = f"http://friend.test:{page_port}"
    with DaemonProcess(folder, http="127.0.0.1:0", allow_origin=origin) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with Browser(tmp_path_factory.mktemp("chromium"), NAMES) as opened:
        opened.call("Page.enable")
        yield opened


def open_page(browser: Browser, url: str) -> None:
    browser.events.clear()
    told = browser.call("Page.navigate", url=url)
    assert "errorText" not in told, told
    browser.wait("Page.loadEventFired")
    assert browser.value("location.origin") == url.rpartition("/")[0]


def tried(browser: Browser, url: str) -> dict[str, Any]:
    """What the page that is open got to read, by what it tried; ``null`` where that failed."""
    each = ", ".join(f"['{name}', () => {what}]" for name, what in READING.items())
    found: dict[str, Any] = browser.value(
        f"(async () => {{ const URL = {json.dumps(url)}, BODY = {json.dumps(TEXT)}, out = {{}}; "
        f"for (const [name, what] of [{each}]) "
        "{ try { out[name] = await what() } catch { out[name] = null } } return out })()"
    )
    return found


def asked(daemon: DaemonProcess) -> int:
    return int(daemon.metrics()["requests_total"])


def test_the_pages_that_may_ask_get_answers(
    browser: Browser, daemon: DaemonProcess, page_port: int
) -> None:
    """What the others try does work: from our own origin, and from one that is allowed."""
    url = f"http://127.0.0.1:{port_of(daemon)}"
    for origin in (url, f"http://friend.test:{page_port}"):
        open_page(browser, origin + "/")
        before, got = asked(daemon), tried(browser, url)
        assert '"owned_by":"umaserve"' in got["get"] and '"eos"' in got["json"]
        assert '"eos"' in got["simple"] and '"status":"ok"' in got["request"]
        assert asked(daemon) >= before + 4  # the beacon and the form are not waited for


def test_a_page_whose_name_was_pointed_at_us_gets_nothing(
    browser: Browser, daemon: DaemonProcess
) -> None:
    """It is of one origin with the gateway, as far as the browser knows."""
    url = f"http://evil.test:{port_of(daemon)}"
    open_page(browser, url + "/")
    before, got = asked(daemon), tried(browser, url)
    for name, text in got.items():
        assert not text or "misdirected_request" in text, (name, text)
    assert got["get"] and got["json"]  # the refusals of a page of the same origin can be read
    assert ask(daemon, "/health").status == 200 and asked(daemon) == before


@pytest.mark.parametrize("host", ["evil.test", "localhost", "127.0.0.1"])
def test_a_page_of_another_origin_gets_nothing(
    browser: Browser, daemon: DaemonProcess, page_port: int, host: str
) -> None:
    """The same host with another port is another origin too."""
    open_page(browser, f"http://{host}:{page_port}/")
    for name in ("127.0.0.1", "localhost", "evil.test"):
        before, got = asked(daemon), tried(browser, f"http://{name}:{port_of(daemon)}")
        assert not any(got.values()), got
        assert ask(daemon, "/health").status == 200 and asked(daemon) == before


def test_a_page_without_an_origin_gets_nothing(
    browser: Browser, daemon: DaemonProcess, page_port: int
) -> None:
    """A sandboxed frame's origin is ``null``."""
    open_page(browser, f"http://evil.test:{page_port}/")
    url = f"http://127.0.0.1:{port_of(daemon)}"
    before = asked(daemon)
    code = f"fetch('{url}/generate', {{method: 'POST', body: {json.dumps(TEXT)}}})"
    told = "then(r => r.text(), () => 'none').then(t => parent.postMessage(t, '*'))"
    inner = f"<script>{code}.{told}"
    got = browser.value(
        "new Promise(done => { onmessage = m => done(m.data); const f = "
        "document.createElement('iframe'); f.sandbox = 'allow-scripts'; "
        f"f.srcdoc = {json.dumps(inner)} + '</' + 'script>'; document.body.append(f) }})"
    )
    assert got == "none" and asked(daemon) == before
