"""A place to run a program from npm: an empty home, a folder with a file, and no network but us.

The daemon's model says what a script says.  The program finds it at the address that docs/HTTP.md
has, with the set-up that stands there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import npm_clients, offline
from tests.support.agent_script import Script
from tests.support.chat_questions import templates
from tests.support.server_harness import DaemonProcess

PAGE = Path(__file__).resolve().parents[2] / "docs/HTTP.md"
PORT = 8080
KEY = "a-key-of-the-clients"
NO_KEY = "none"  # where the page says that a key goes
QUESTION = '"What does this project do?"'
TASK = "Read colour.txt, make its colour green, and tell me what it was."
BEFORE, AFTER = "name = box\ncolour = red-4711\n", "name = box\ncolour = green\n"
ANSWER = "It was red-4711. It is green now."
LIMIT_S = 120.0

_BLOCK = re.compile(r"(?:`~/(\S+)`:\n\n)?```\w+\n(.*?)```\n", re.DOTALL)


def set_up(program: str) -> list[tuple[str, str]]:
    """The blocks of a section of the page, each with the file below the home that it is, or "".

    They have the key.
    """
    text = PAGE.read_text("utf-8")
    section = text.partition(f"\n### {program}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    found = _BLOCK.findall(section)
    assert sum(body.count(NO_KEY) for _, body in found) == 1, f"docs/HTTP.md sets {program} up"
    return [(name, body.replace(NO_KEY, KEY)) for name, body in found]


class Desk:
    """``folder`` is the program's, with ``colour.txt``; its ``home`` is another."""

    def __init__(self, path: Path, socket: str) -> None:
        self._socket = socket
        self.home, self.folder, self._temporary = path / "home", path / "work", path / "tmp"
        for each in (self.home, self.folder, self._temporary):
            each.mkdir()
        self.file = self.folder / "colour.txt"
        self.file.write_text(BEFORE)

    def agent(
        self, program: str, instead: tuple[str, str] = ("", "")
    ) -> subprocess.CompletedProcess[str]:
        """Set up as the page says, and asked to do the task instead of the page's question.

        Of ``instead``, the first is on the page, and the second stands for it.
        """
        blocks = set_up(program)
        assert any(instead[0] in body for _, body in blocks)
        for name, body in blocks:
            if instead[0]:
                body = body.replace(*instead)
            if name:
                (self.home / name).parent.mkdir(parents=True, exist_ok=True)
                (self.home / name).write_text(body)
            else:
                command = body
        assert QUESTION in command
        return self.run(["sh", "-ec", command.replace(QUESTION, f'"{TASK}"')])

    def connect(self, app: str, *words: str) -> None:
        """`umaserve connect` in this home, for the daemon at the address that it is found at."""
        daemon = ["--url", f"http://127.0.0.1:{PORT}", "--key", KEY]
        done = self.run(
            [sys.executable, "-m", "umaserve", "connect", app, "--yes", *daemon, *words]
        )
        assert done.returncode == 0, done.stderr

    def program(self, package: str, name: str) -> Any:
        """What a program of tests/clients/npm prints, after the page's set-up of its package."""
        ((_, start),) = set_up(package)
        path = self.folder / "program.mjs"
        path.write_text(start + (npm_clients.LOCKED / name).read_text("utf-8"))
        shutil.copy(npm_clients.LOCKED / "file_tools.mjs", self.folder)
        (self.folder / "node_modules").symlink_to(npm_clients.home() / "node_modules")
        done = self.run(["node", str(path), TASK])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        node = npm_clients.node_home()
        environment = {
            "PATH": f"{npm_clients.home()}/node_modules/.bin:{node}/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self._temporary),
            "LANG": "C.UTF-8",
        }
        return subprocess.run(
            offline.command(PORT, self._socket, command),
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )


@contextmanager
def desk(
    path: Path,
    calls: list[tuple[str, dict[str, Any]]] | None = None,
    sees: str = r"colour = (\S+)",
    says: str = "It was {}. It is green now.",
    **settings: Any,
) -> Iterator[Desk]:
    """Before a daemon whose model makes these calls when it is told the task.

    ``FOLDER`` in their arguments stands for the program's folder.  The model answers with
    ``says``, in which ``{}`` is what ``sees`` finds in the results.
    """
    template = next(each for each in templates() if each.stem == "Qwen-Qwen3-0.6B")
    (path / "daemon").mkdir()
    keys = path / "daemon/keys"
    keys.write_text(f"clients {KEY}\n")
    keys.chmod(0o600)
    socket = f"{path}/daemon/http"
    told = json.dumps(calls or []).replace("FOLDER", f"{path}/work")
    script = Script(TASK, json.loads(told), sees, says)
    given = {"FAKE_TEMPLATE": template.read_text("utf-8"), "FAKE_SCRIPT": str(script)}
    # a token of this engine is a byte, and agents send 100 thousand of them
    always = {"http": f"unix:{socket}", "environment": given, "api_key_file": str(keys)}
    settings = {"n_ctx": 1 << 18, **always, **settings}
    with DaemonProcess(path / "daemon", **settings) as daemon:
        yield Desk(path, socket)
        daemon.idle()
