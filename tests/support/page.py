"""The gateway's page in a browser: actions of a person, and the texts that they see."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.support.chat_questions import templates
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess

# `said`: values that the page finds in answers, by path; `sent`: what it has asked the model
SAID = """
(() => {
  const real = window.fetch;
  Object.assign(window, { said: %s, sent: [] });
  window.fetch = async (path, options) => {
    if (options.body) window.sent.push(JSON.parse(options.body));
    const answer = await real(path, options);
    if (!answer.ok || !(path in window.said)) return answer;
    return Response.json({ ...await answer.json(), ...window.said[path] });
  };
})();
"""
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}


def script_of(replies: Sequence[tuple[str, str]], folder: Path) -> dict[str, str]:
    """The environment of a fake engine that is Qwen3 by its template, and says these replies."""
    path = folder / "replies.json"
    path.write_text(json.dumps(replies), encoding="utf-8")
    template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")
    return {"FAKE_TEMPLATE": template.read_text("utf-8"), "FAKE_REPLIES": str(path)}


class Page:
    """The page at ``url``, in a browser with a mouse.  ``socket`` is its daemon's."""

    def __init__(self, browser: Browser, url: str, socket: str = "") -> None:
        self.browser, self.url, self.socket = browser, url, socket

    def open(self, said: dict[str, Any] | None = None, fresh: bool = True) -> None:
        """Go there.  ``said``: values that it finds in answers, by path; ``fresh``: with nothing
        kept from before."""
        if fresh:
            origin = self.url.rstrip("/")
            self.browser.call("Page.enable")
            self.browser.call("Page.navigate", url="about:blank")
            self.browser.call("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        source = SAID % json.dumps(said or {})
        made = self.browser.call("Page.addScriptToEvaluateOnNewDocument", source=source)
        self.browser.open(self.url)
        self.browser.call("Page.removeScriptToEvaluateOnNewDocument", **made)
        self.until("document.querySelector('#dot').className !== ''")

    def value(self, expression: str) -> Any:
        return self.browser.value(expression)

    def until(self, expression: str) -> None:
        self.browser.until(expression)

    def text(self, selector: str) -> list[str]:
        """The texts of all elements there."""
        found: list[str] = self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
        )
        return found

    def shown(self, selector: str) -> bool:
        return bool(self.value(f"document.querySelector({json.dumps(selector)}).checkVisibility()"))

    def size(self, width: int, height: int = 900, dark: bool = False) -> None:
        self.browser.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.call("Emulation.setEmulatedMedia", features=[scheme])

    def point(self, selector: str) -> tuple[float, float]:
        """Move the pointer there."""
        chosen = f"document.querySelector({json.dumps(selector)})"
        self.until(chosen)
        self.value(f"{chosen}.scrollIntoView({{block: 'nearest'}})")
        box = self.value(
            f"(b => [b.x + b.width / 2, b.y + b.height / 2])({chosen}.getBoundingClientRect())"
        )
        self.browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        return box[0], box[1]

    def click(self, selector: str) -> None:
        x, y = self.point(selector)
        at = {"x": x, "y": y, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.call("Input.dispatchMouseEvent", type=kind, **at)

    def press(self, key: str) -> None:
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.browser.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def write(self, selector: str, text: str) -> None:
        """Replace the text of a box."""
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        self.browser.call("Input.insertText", text=text)

    def pasted(self) -> str:
        """Paste into a box, and return its text."""
        self.value("(e => { e.focus(); e.select() })(document.querySelector('#text'))")
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", commands=["paste"])
        text: str = self.value("document.querySelector('#text').value")
        return text

    def ask(self, text: str) -> None:
        """Write and send, by the keyboard alone."""
        self.value("document.querySelector('#text').focus()")
        self.write("#text", text)
        self.press("Enter")

    def said(self) -> list[str]:
        """The texts of questions and answers."""
        return [text.strip() for text in self.text(".turn > .text")]

    def sent(self) -> dict[str, Any]:
        """The newest question as the gateway got it."""
        found: dict[str, Any] = self.value("window.sent.at(-1)")
        return found

    def pick(self, selector: str, *files: Path) -> None:
        """Choose files in a file box."""
        root = self.browser.call("DOM.getDocument")["root"]["nodeId"]
        box = self.browser.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.browser.call("DOM.setFileInputFiles", nodeId=box, files=list(map(str, files)))

    def reload(self) -> None:
        self.browser.events.clear()
        self.browser.call("Page.reload")
        self.browser.wait("Page.loadEventFired")

    def answered(self, count: int = 1) -> None:
        """Return when so many answers are shown and none is running."""
        whole = "document.querySelectorAll('.assistant:not([aria-busy])').length"
        self.until(f"{whole} === {count} && !document.querySelector('[aria-busy]')")


@contextmanager
def page_of(folder: Path, replies: Sequence[tuple[str, str]] = ()) -> Iterator[Page]:
    """A page of a daemon whose model says these replies."""
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    given = script_of(replies, folder)
    with (
        DaemonProcess(folder, n_ctx=8192, http="127.0.0.1:0", environment=given) as daemon,
        Browser(folder) as browser,
    ):
        yield Page(browser, f"http://127.0.0.1:{port_of(daemon)}/", daemon.path)
