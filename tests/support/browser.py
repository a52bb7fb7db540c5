"""A real browser for tests: Chromium from apt, where there is one."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
NO_CHROMIUM = "no Chromium here (apt-get install chromium): it is the browser of this test"
ANSWER_S = 60.0


class Browser:
    """A headless Chromium, spoken to over its debugging pipe; of the network it has this machine.

    ``folder`` takes its profile and its log.  ``names`` are rules for the names of hosts; without
    them, it finds none.
    """

    def __init__(
        self, folder: Path, names: str = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    ) -> None:
        ours, theirs = os.pipe(), os.pipe()  # (they read, we write), (we read, they write)
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--hide-scrollbars", f"--host-resolver-rules={names}",
            "--blink-settings=primaryHoverType=2,availableHoverTypes=2",
            f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe",
        ]  # fmt: skip

        def plug() -> None:
            os.dup2(os.dup(theirs[1]), 4)  # the numbers that the browser looks for
            os.dup2(read, 3)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        read = os.dup(ours[0])
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(CHROMIUM), *flags, "about:blank"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=plug, close_fds=False,
            )  # fmt: skip
        for end in (ours[0], theirs[1], read):
            os.close(end)
        self._write, self._read = ours[1], theirs[0]
        os.set_blocking(self._read, False)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.write(self._write, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def wait(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self._receive()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression (or promise) gives on the page."""
        told = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, expression: str) -> None:
        """Returns when a JavaScript expression is true on the page."""
        limit = time.monotonic() + ANSWER_S
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < limit, f"never true: {expression}"
            time.sleep(0.02)

    def open(self, url: str) -> None:
        """Go to a page, and note from then on what the browser complains of."""
        for domain in ("Page", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def complaints(self) -> list[dict[str, Any]]:
        """Errors of scripts, and what the browser logs: refused by a policy, not found."""
        self.value("1")
        told = ("Log.entryAdded", "Runtime.exceptionThrown")
        return [event["params"] for event in self.events if event["method"] in told]

    def picture(self, path: Path, **options: Any) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, **options)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self) -> dict[str, Any]:
        limit = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            assert self._process.poll() is None, "the browser has ended"
            assert time.monotonic() < limit, "the browser does not answer"
            try:
                self._buffer += os.read(self._read, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
        body, _, self._buffer = self._buffer.partition(b"\0")
        answer = json.loads(body)
        if "method" in answer:
            self.events.append(answer)
        return answer
