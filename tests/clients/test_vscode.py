"""The extension of editors/vscode: its own tests, its package, and that package in a real VS Code.

VS Code is code-server, whose page a Chromium shows.  The daemons have the bundled model, but for
one that tests of the extension need for what the bundled model cannot say.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import npm_clients
from tests.support.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.support.client_programs import Scripted, tool_call
from tests.support.editor import Editor, asking, build, open_file, press, write
from tests.support.real_daemon import real
from tests.support.server_harness import ROOT, DaemonProcess, eventually
from umaserve.client import Client
from umaserve.llama.builds import cache_root

MISSING = npm_clients.missing(npm_clients.EDITOR, npm_clients.EXTENSION)
pytestmark = [pytest.mark.clients, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

GHOST = "[...document.querySelectorAll('.ghost-text-decoration, .ghost-text')]"
STATUS = "document.querySelector('.statusbar').textContent"
CALL = tool_call("read_file", path="note.txt")
REPLIES = [
    ("The door is green.", "It is green."),
    ("Read the note.", f"<think>\nA file, then.\n</think>\n\nI look. {CALL}"),
    ("what follows:", "this follows  \n\nand not this"),
    ("6 times 7", "<think>\nA product.\n</think>\n\n42."),
]  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), n_ctx=8192) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the extension, after its own tests have passed."""
    folder = tmp_path_factory.mktemp("package")
    scripted = Scripted(folder)
    scripted.says(REPLIES)
    with real(tmp_path_factory.mktemp("small")) as small, scripted.daemon as told:
        return build(folder, socket=small.path, scripted=told.path)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    (tmp_path / "browser").mkdir()
    with Browser(tmp_path / "browser") as opened:
        yield opened


def asked(daemon: DaemonProcess) -> list[dict[str, Any]]:
    """What VS Code has asked for, the newest last."""
    return [each for each in daemon.info()["recent"] if each["app"] == "vscode"]


def test_the_extension_is_tested_and_packed(package: Path) -> None:
    assert re.fullmatch(r"umaserve-[\d.]+\.vsix", package.name)


@in_a_browser
def test_a_suggestion_comes_and_is_taken(
    daemon: DaemonProcess, package: Path, browser: Browser, tmp_path: Path
) -> None:
    with Editor(tmp_path / "editor", daemon.path, package) as editor:
        file = editor.work / "sums.py"
        file.write_text("def add(a, b):\n    return a + b\n\n\n")
        before = len(asked(daemon))
        open_file(browser, editor, file)
        write(browser, "def fibonacci(n):")
        browser.until(f"{GHOST}.length")
        shown = browser.value(f"{GHOST}.map((part) => part.textContent).join('')")
        browser.until(f"/interactive · p95 [0-9.]+ ms/.test({STATUS})")
        browser.picture(tmp_path / "suggestion.png")
        print("a picture of it:", tmp_path / "suggestion.png")
        press(browser, "Tab")
        saved = lambda: file.read_text().partition("def fibonacci(n):")[2]  # noqa: E731
        taken = eventually(saved, "the suggestion is saved")
        assert sorted(re.sub(r"\s", "", shown)) == sorted(re.sub(r"\s", "", taken))
        newest = asked(daemon)[before:]
        assert newest and {each["lane_reason"] for each in newest} == {"asked for"}


@in_a_browser
def test_typing_on_cancels_on_the_daemon(
    daemon: DaemonProcess, package: Path, browser: Browser, tmp_path: Path
) -> None:
    """The prompt takes the bundled model longer than the next key needs."""
    settings = {"umaserve.inline.debounceMs": 0, "umaserve.priority": "background"}
    with Editor(tmp_path / "editor", daemon.path, package, settings=settings) as editor:
        file = editor.work / "long.py"
        file.write_text("".join(f"price_{n} = {n * 7919 % 9973}\n" for n in range(450)))
        open_file(browser, editor, file)
        first = len(asked(daemon))
        write(browser, "p")
        running = eventually(lambda: daemon.info()["sessions"], "the daemon computes the prompt")
        assert running[0]["session"].startswith("vscode-") and running[0]["lane"] == "background"
        write(browser, "r")
        ended = eventually(lambda: asked(daemon)[first:], "the first one ends")[0]
        assert ended["serial"] == running[0]["serial"]
        assert ended["reason"] == "cancel" and ended["completion_tokens"] == 0
        goes_on = lambda: asked(daemon)[-1]["reason"] in ("stop", "length")  # noqa: E731
        eventually(goes_on, "the last one is answered")
        assert file.read_text().endswith("\npr")


@in_a_browser
def test_other_extensions_get_answers(
    daemon: DaemonProcess, package: Path, browser: Browser, tmp_path: Path
) -> None:
    question, answers = "What does os.path.join do?", tmp_path / "answers"
    environment = {"ASKING_FILE": str(answers), "ASKING_QUESTION": question}
    both = (package, asking(tmp_path))
    with Editor(tmp_path / "editor", daemon.path, *both, environment=environment) as editor:
        browser.open(editor.url(editor.work / "none"))
        eventually(answers.exists, "the extension has asked")
    told = json.loads(answers.read_text())
    assert "error" not in told, told
    (answer,) = told["found"]
    assert answer["name"] == daemon.info()["model"]["name"] and answer["counted"] > 1
    with daemon.client() as client:
        client.ask("a", None, messages=[{"role": "user", "content": question}],
                   temperature=0, max_tokens=24)  # fmt: skip
        assert answer["text"] == client.finish("a")[0].text


@in_a_browser
def test_a_missing_daemon_is_told_once_and_started_in_a_terminal(
    package: Path, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "uma.sock"
    settings = {"umaserve.command": f"{sys.executable} -m umaserve"}
    given = {
        "PYTHONPATH": str(ROOT),
        "UMA_CACHE_DIR": str(cache_root()),
        "UMA_STATE_DIR": str(tmp_path),
    }
    folder = tmp_path / "editor"
    with Editor(folder, str(path), package, settings=settings, environment=given) as editor:
        file = editor.work / "sums.py"
        file.write_text("\n")
        open_file(browser, editor, file, status="UMA Serve: no daemon")
        write(browser, "def add", pause_s=0.3)
        message = "[...document.querySelectorAll('.notification-list-item-message')]"
        browser.until(f"{message}.length")
        assert browser.value(f"{message}.map((each) => each.textContent)") == [
            f"UMA Serve: no daemon at {path} (ENOENT); start one with `umaserve --socket {path}`"
        ]
        browser.picture(tmp_path / "no-daemon.png")
        button = "[...document.querySelectorAll('.notifications-toasts .monaco-button')]"
        browser.value(f"{button}.find((each) => each.textContent === 'Start it').click()")
        # a first start asks in the terminal which model is to be fetched
        terminal = "document.querySelector('.part.panel .xterm-rows')?.textContent"
        browser.until(f"/for.the.demonstration.model:/.test({terminal})")
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r")
        browser.until(f"{STATUS}.includes('idle · p95')")
        with Client(str(path)) as client:
            pid = client.info()["pid"]
        try:
            browser.value("document.querySelector('.statusbar [id*=umaserve] a').click()")
            rows = "document.querySelector('.part.editor .xterm-rows')?.textContent"
            browser.until(f"/Idle:.nobody.asks/.test({rows})")
        finally:
            browser.picture(tmp_path / "dashboard.png")
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: not psutil.pid_exists(pid), "the daemon ends")
        browser.until(f"{STATUS}.includes('UMA Serve: no daemon')")
