"""VS Code as a page: code-server from npm, with the extension of editors/vscode in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from tests.support import npm_clients
from tests.support.browser import Browser
from tests.support.server_harness import eventually

WIDTH, HEIGHT = 1100, 700
QUIET = {
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "editor.minimap.enabled": False,
    "files.autoSave": "afterDelay",
    "files.autoSaveDelay": 50,
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "terminal.integrated.gpuAcceleration": "off",  # so that the page has its text
    "workbench.startupEditor": "none",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.tips.enabled": False,
}


def build(folder: Path, *, socket: str, scripted: str) -> Path:
    """Check, test and pack the extension in a copy of its sources; the path of its package.

    ``socket`` and ``scripted`` are those of two daemons that its tests ask.
    """
    copy = folder / "extension"
    left_out = shutil.ignore_patterns("node_modules", "dist", "*.vsix")
    shutil.copytree(npm_clients.EXTENSION, copy, ignore=left_out)
    (copy / "node_modules").symlink_to(npm_clients.home(npm_clients.EXTENSION) / "node_modules")
    npm_clients.npm(copy, "test", UMA_SOCK=socket, UMA_SCRIPTED_SOCK=scripted)
    npm_clients.npm(copy, "run", "package")
    (package,) = copy.glob("*.vsix")
    return package


def asking(folder: Path) -> Path:
    """The package of an extension that asks the models of ours; see its own words."""
    copy = folder / "asking"
    shutil.copytree(npm_clients.EDITOR / "asking", copy)
    (copy / "node_modules").symlink_to(npm_clients.home(npm_clients.EXTENSION) / "node_modules")
    words = ["--allow-missing-repository", "--skip-license", "--no-dependencies"]
    npm_clients.npm(copy, "exec", "--offline", "vsce", "--", "package", *words)
    (package,) = copy.glob("*.vsix")
    return package


class Editor:
    """A running VS Code whose extensions know the daemon at ``socket``.

    ``folder`` takes all that it writes; ``work`` in it is the folder that it opens.
    """

    def __init__(
        self,
        folder: Path,
        socket: str,
        *extensions: Path,
        settings: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.work = folder / "work"
        self._data = folder / "data"
        (folder / "home").mkdir(parents=True)
        self.work.mkdir()
        # those of the machine are read from a place of their own
        for path in (self._data / "User", self._data / "Machine"):
            path.mkdir(parents=True)
            (path / "settings.json").write_text(json.dumps({**QUIET, **(settings or {})}))
        node = npm_clients.node_home()
        program = npm_clients.home(npm_clients.EDITOR) / "node_modules/code-server"
        self._command = [
            f"{node}/bin/node", str(program), "--user-data-dir", str(self._data),
            "--extensions-dir", str(folder / "extensions"), "--disable-telemetry",
        ]  # fmt: skip
        self._environment = {
            "PATH": f"{node}/bin:/usr/bin:/bin", "HOME": str(folder / "home"), "UMA_SOCK": socket,
            "XDG_RUNTIME_DIR": str(folder / "home"), "LANG": "C.UTF-8", **(environment or {}),
        }  # fmt: skip
        for extension in extensions:
            subprocess.run(
                [*self._command, "--install-extension", str(extension)],
                env=self._environment, check=True, timeout=120,
            )  # fmt: skip
        self.log = folder / "editor.log"

    def __enter__(self) -> Editor:
        words = ["--auth", "none", "--bind-addr", "127.0.0.1:0", "--disable-update-check"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, *words, str(self.work)],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        listens = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
        self.port = int(eventually(lambda: listens.search(self.log.read_text()), "it listens")[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if kind is not None:
            print(self.log.read_text())

    def url(self, path: Path) -> str:
        """The page with this file open."""
        where = f"vscode-remote://127.0.0.1:{self.port}{path}"
        payload = quote(json.dumps([["openFile", where]]))
        return f"http://127.0.0.1:{self.port}/?folder={quote(str(self.work))}&payload={payload}"


def open_file(browser: Browser, editor: Editor, path: Path, status: str = "p95") -> None:
    """The page with the file, the cursor at its end, and these words in the status bar."""
    size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.open(editor.url(path))
    browser.until("document.querySelector('.editor-instance .view-line')")
    browser.until(f"document.querySelector('.statusbar')?.textContent.includes('{status}')")
    corner = browser.value(
        "(({left, top}) => [left + 20, top + 5])"
        "(document.querySelector('.editor-instance .view-lines').getBoundingClientRect())"
    )
    for kind in ("mousePressed", "mouseReleased"):
        at = {"x": corner[0], "y": corner[1], "button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", type=kind, **at)
    press(browser, "End", modifiers=2)


def press(browser: Browser, key: str, modifiers: int = 0) -> None:
    """A key that has a name; ``modifiers``: 2 is Control."""
    codes = {"End": 35, "Tab": 9, "Escape": 27}
    for kind in ("rawKeyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key,
            windowsVirtualKeyCode=codes[key], modifiers=modifiers,
        )  # fmt: skip


def write(browser: Browser, text: str, pause_s: float = 0.0) -> None:
    """Keys that write a character each."""
    for character in text:
        for kind in ("keyDown", "keyUp"):
            shown = {"text": character} if kind == "keyDown" else {}
            browser.call("Input.dispatchKeyEvent", type=kind, key=character, **shown)
        time.sleep(pause_s)
