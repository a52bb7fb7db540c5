"""Programs that others wrote, set up as docs/HTTP.md says, and daemons for them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_questions import templates
from tests.support.client_venvs import folder_of, why_missing
from tests.support.docs_runner import ROOT
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess

PROGRAMS = ROOT / "tests/clients/programs"
WRITTEN = "http://127.0.0.1:8080"  # where the page says that a daemon is
KEY = "a-key-of-the-clients"  # in the place of "none"
NOWHERE = "http://127.0.0.1:9"  # a port where nothing answers
TIMEOUT_S = 240


def key_file(folder: Path) -> str:
    """For ``--api-key-file``; the only key is `KEY`."""
    path = folder / "keys"
    path.write_text(f"clients {KEY}\n")
    path.chmod(0o600)
    return str(path)


def setups(client: str, url: str) -> list[str]:
    """The blocks under the client's heading in docs/HTTP.md, for a daemon at ``url`` with a key."""
    page = (ROOT / "docs/HTTP.md").read_text("utf-8")
    (section,) = re.findall(rf"(?ms)^### {re.escape(client)}\n(.*?)(?=^##|\Z)", page)
    found = re.findall(r"(?ms)^```\w+\n(.*?)^```$", section)
    assert any(WRITTEN in block for block in found), section
    return [re.sub(r"\bnone\b", KEY, block.replace(WRITTEN, url)) for block in found]


def sdk_client(package: str, url: str) -> Any:
    """What the page calls ``client`` of the package ``openai``, ``anthropic`` or ``ollama``."""
    blocks = setups("openai, anthropic and ollama", url)
    (setup,) = (block for block in blocks if f"from {package} import" in block)
    names: dict[str, Any] = {}
    exec(setup, names)
    return names["client"]


class Programs:
    """What is installed in one environment, run in a folder with a home of its own.

    Nothing that is run reaches another machine: what is not for this one goes to a proxy that is
    not there.
    """

    def __init__(self, environment: str, folder: Path) -> None:
        if why := why_missing(environment):
            pytest.skip(why)
        self.folder = folder
        self._bin = folder_of(environment) / "bin"
        names = "openai|anthropic|ollama|litellm|aider|llm|hf|uma|xdg"
        others = re.compile(rf"(?i)({names})_|python|.*proxy$")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not others.match(name)},
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is fetched
            **{f"{kind}_PROXY": NOWHERE for kind in ("HTTP", "HTTPS")},
            **{f"{kind}_proxy": NOWHERE for kind in ("http", "https")},
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def shell(self, lines: str, **more: str) -> str:
        """What the lines print, both outputs together.  AssertionError where they fail."""
        return self._run(["bash", "-e", "-o", "pipefail", "-c", lines], more)

    def program(self, name: str, *words: str, given: str) -> str:
        """What a program of ours prints; it imports from ``given``, a set-up of the page."""
        (self.folder / "given.py").write_text(given, "utf-8")
        copy = self.folder / "program.py"  # its own name may be that of a package
        copy.write_bytes((PROGRAMS / name).read_bytes())
        return self._run([str(self._bin / "python"), str(copy), *words], {})

    def _run(self, command: list[str], more: dict[str, str]) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env={**self._environment, **more}, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout


# --- a model whose words are given --------------------------------------------------------------


def tool_call(name: str, /, **arguments: Any) -> str:
    """A call of a tool as the model writes it."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


class Scripted:
    """A daemon whose model is Qwen3 by its template, and says what a test gives it to say."""

    def __init__(self, folder: Path, tick_ms: float = 0.0, **settings: Any) -> None:
        template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")
        self._replies = folder / "replies.json"
        self.says([])
        always = {"n_ctx": 65536, "max_sessions": 8, "api_key_file": key_file(folder)}
        self.daemon = DaemonProcess(
            folder,
            http="127.0.0.1:0",
            environment={
                "FAKE_TEMPLATE": template.read_text("utf-8"),
                "FAKE_REPLIES": str(self._replies),
                "FAKE_TICK_MS": str(tick_ms),
            },
            **{**always, **settings},
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{port_of(self.daemon)}"

    def says(self, replies: Sequence[tuple[str, str]]) -> None:
        """From now on: the second text to a prompt with the first; the first such pair counts."""
        self._replies.write_text(json.dumps(replies), "utf-8")


NOTE = "notes.txt"
BEFORE, AFTER = "The door is green.\n", "The door is blue.\n"
TASK = f"The door in {NOTE} shall be blue."
WROTE, ANSWER = "It is written.", "I painted the door."


def editing(
    read: str = "read_file", write: str = "write_file"
) -> list[tuple[str, str]]:
    """Replies: read the note, edit it, answer.  The tools take ``path`` and ``text``."""
    thought = "<think>\nA file, then.\n</think>\n\n"
    return [
        (WROTE, ANSWER),
        (BEFORE.strip(), "I edit it. " + tool_call(write, path=NOTE, text=AFTER)),
        (TASK, thought + tool_call(read, path=NOTE)),
    ]
