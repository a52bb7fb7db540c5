"""docs/GUIDE.md, followed by somebody who types what it says into two terminals of 80x24."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.docs_runner import Workspace
from tests.support.fixtures.tmux_pane import MISSING, Pane, tmux
from tests.support.guide_script import GUIDE, Step, steps
from umaserve.cli.chat.input import is_open

SCREENS = GUIDE.with_name("guide-screens.txt")
KEEP = "UMASERVE_KEEP_SCREENS"  # set it to 1, and the screens of docs/ are written anew
PROMPT, CHAT_PROMPT = "READY>", r">( {2,}\S.*)?"  # with the model's name at the right


class Reader:
    """Does what the steps say, and keeps what the screen shows after each of them."""

    def __init__(self, workspace: Workspace, directory: Path) -> None:
        self._workspace = workspace
        names = {"PATH": os.environ["PATH"]} | {
            name: value
            for name, value in workspace.environment.items()
            if name.startswith("UMA_") or name in ("HOME", "PYTHONPATH")
        }
        self._panes = {name: Pane(80, 24, directory, **names) for name in ("first", "second")}
        self._at, self._typed = "first", ""
        self.screens: list[str] = []
        self._names = {  # what is of this machine, and what a reader has there
            str(workspace.path): "~/umaserve",
            workspace.environment["HOME"]: "~",
            workspace.socket: "/tmp/uma.sock",
            workspace.environment["UMA_CACHE_DIR"]: "~/.cache/umaserve",
            sys.executable: "~/umaserve/.venv/bin/python",
        }

    def __enter__(self) -> Reader:
        for pane in self._panes.values():
            pane.__enter__()
            self._command(pane, f"cd {self._workspace.path}")
        return self

    def __exit__(self, *error: object) -> None:
        for pane in self._panes.values():
            pane.__exit__(*error)

    def follow(self, step: Step) -> None:
        pane = self._panes[self._at]
        match step.kind:
            case "terminal":
                self._at = step.text
            case "shell":
                for line in step.text.splitlines():
                    self._command(pane, line)
            case "typed":
                message = ""
                for line in step.text.splitlines():
                    if not is_open(message):
                        message = ""
                        pane.until(lambda: at_chat_prompt(pane), "the chat's prompt")
                    message += line + "\n"
                    pane.command(line)
                    self._typed = line
            case "file":
                (self._workspace.path / step.name).write_text(step.text + "\n")
            case "presses":
                pane.press(step.text)
            case "sees":
                pane.shows(step.text)
                self._keep(step)
            case "prints":
                pane.until(lambda: self._has_ended(pane), "the prompt")
                self._keep(step)

    def _command(self, pane: Pane, line: str) -> None:
        pane.until(lambda: at_prompt(pane), "the prompt")
        pane.press("C-l")
        pane.until(lambda: pane.lines()[0] == PROMPT, "an empty screen")
        pane.command(line)
        self._typed = line

    def _has_ended(self, pane: Pane) -> bool:
        """Whether the prompt is back behind what was typed, and what that printed."""
        if at_chat_prompt(pane):
            return self._typed in pane.text(joined=True)
        return last_line(pane) == PROMPT and len(pane.text().split()) > 1

    def _keep(self, step: Step) -> None:
        screen = self._panes[self._at].text(joined=True)
        assert "Traceback" not in screen
        for path, name in self._names.items():
            screen = screen.replace(path, name)
        screen = re.sub(r"/tmp/pytest-\S*", "/tmp/…", screen)  # the dashboard cuts them
        lines = [line.rstrip() for line in screen.splitlines()]
        self.screens.append(
            f"=== {step.heading}, {self._at} terminal ===\n" + "\n".join(lines).rstrip() + "\n"
        )


def at_chat_prompt(pane: Pane) -> bool:
    return re.fullmatch(CHAT_PROMPT, last_line(pane)) is not None


def last_line(pane: Pane) -> str:
    """The last that is not empty."""
    return next((line for line in reversed(pane.lines()) if line), "")


def at_prompt(pane: Pane) -> bool:
    return last_line(pane) == PROMPT


def titles(screens: str) -> list[str]:
    return re.findall(r"^=== .* ===$", screens, re.M)


@pytest.mark.slow
@pytest.mark.timeout(180)  # each command of the guide
@pytest.mark.skipif(tmux() is None, reason=MISSING)
def test_a_stranger_follows_the_guide(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with Reader(workspace, tmp_path) as reader:
        for step in steps(GUIDE.read_text("utf-8")):
            reader.follow(step)
        assert not os.path.lexists(workspace.socket)
    screens = "\n".join(reader.screens)
    (tmp_path / SCREENS.name).write_text(screens)
    if os.environ.get(KEEP):
        SCREENS.write_text(screens)
    # what the page shows is of the page as it is
    assert titles(SCREENS.read_text("utf-8")) == titles(screens)


def test_a_step_that_nobody_understands_is_refused() -> None:
    for page in ("<!-- sleeps: 5 -->", "```text\nx\n```", "```python\nx\n```"):
        with pytest.raises(ValueError, match="no"):
            steps(page)
    assert steps("# A\n<!-- file: x.py -->\n```python\n1\n```\n<!-- sees: a.b -->") == [
        Step("file", "1", "x.py", "A"),
        Step("sees", "a.b", "", "A"),
    ]
