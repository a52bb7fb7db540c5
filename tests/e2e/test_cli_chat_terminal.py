"""A conversation as a person types it: keys, pastes, and a daemon that comes and goes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.fixtures.tmux_pane import MISSING, Pane, tmux
from umaserve.protocol import Generate

pytestmark = pytest.mark.skipif(tmux() is None, reason=MISSING)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "d.sock")


@pytest.fixture
def pane(tmp_path: Path, path: str) -> Iterator[Pane]:
    with Pane(80, 24, tmp_path, UMA_SOCK=path) as pane:
        yield pane


def begin(pane: Pane) -> None:
    pane.command(f"{sys.executable} -m umaserve chat")
    is_asked(pane)


def is_asked(pane: Pane) -> None:
    """The last line is a prompt: what is typed from now on stands behind it."""
    pane.until(lambda: re.search(r"\n> +\S+$", pane.text().rstrip()), "a prompt")


def messages(daemon: FakeDaemon) -> list[str]:
    return [seen.messages[-1].content for seen in daemon.seen if isinstance(seen, Generate)]


def test_lines_that_belong_together_are_one_message(pane: Pane, path: str) -> None:
    with FakeDaemon(path) as daemon:
        begin(pane)
        assert pane.shows("^fake; /help lists what you can do$")
        pane.paste("pasted one\npasted two\n")
        pane.shows("^  pasted two")
        assert not daemon.seen  # Enter sends, and a paste does not
        pane.press("Enter")
        pane.shows("^pasted one pasted two$")
        pane.type("alt one")
        pane.press("M-Enter")
        pane.command("alt two")
        pane.shows("^alt one alt two$")
        pane.command('"""quoted one')
        pane.command('quoted two"""')
        pane.shows("^quoted one quoted two$")
        assert messages(daemon) == [
            "pasted one\npasted two",
            "alt one\nalt two",
            "quoted one\nquoted two",
        ]
        pane.press("C-d")
        pane.shows("^READY> ")


def test_tab_completes_commands_and_files(pane: Pane, path: str, tmp_path: Path) -> None:
    with FakeDaemon(path):
        pane.command(f"cd {tmp_path}")  # the screen is narrow
        begin(pane)
        pane.command("hello")
        pane.shows("^hello$")
        is_asked(pane)
        pane.type("/sa")
        pane.press("Tab")
        pane.shows("^> /save")
        pane.type(" kept.json")
        pane.shows("^> /save kept.json")
        pane.press("Enter")
        pane.shows(r"^\(1 turn saved\)$")
        is_asked(pane)
        pane.type("/load kep")
        pane.press("Tab")
        pane.shows(r"^> /load kept.json +fake$")
        pane.press("Enter")
        pane.shows("1 turn loaded; the last question was: hello")


def test_nothing_that_was_typed_reaches_the_shell(pane: Pane, path: str) -> None:
    with FakeDaemon(path):
        begin(pane)
        pane.command("first")
        pane.shows("^first$")
    pane.command("echo to-the-shell")
    pane.shows("^error: no daemon at")
    pane.shows("your message is kept: /retry asks again")
    with FakeDaemon(path, "another") as daemon:
        pane.command("/retry")
        pane.shows("^echo to-the-shell$")
        pane.shows("^.the model is another now.$")
        assert [m.content for m in daemon.seen[0].messages] == [
            "first",
            "first ",
            "echo to-the-shell",
        ]
        pane.command("/exit")
        pane.shows("^READY> ")
    assert "^to-the-shell" not in pane.text()


def test_ctrl_c_cuts_an_answer_and_drops_a_line(pane: Pane, path: str) -> None:
    with FakeDaemon(path) as daemon:
        begin(pane)
        pane.command("slow")
        pane.shows("slow slow slow")
        pane.press("C-c")
        pane.shows("^.cut short.$")
        daemon.wait_for(lambda: daemon.cancelled)
        pane.type("never sent")
        pane.press("C-c")
        pane.shows("^./exit or Ctrl-D leaves.$")
        pane.command("sent")
        pane.shows("^sent$")
        assert messages(daemon) == ["slow", "sent"]


def test_lines_of_an_answer_end_between_words(pane: Pane, path: str) -> None:
    words = " ".join(f"word{number:02}" for number in range(30))
    with FakeDaemon(path):
        begin(pane)
        pane.paste(words)
        pane.press("Enter")
        pane.shows("^word11 word12 .* word21$")
        pane.shows("^word22 .* word29$")


def test_a_prompt_that_takes_long_shows_how_far_it_is(pane: Pane, path: str) -> None:
    with FakeDaemon(path) as daemon:
        daemon.row = {"state": "prefill", "prompt_tokens": 4000, "kv_cells": 1000, "age_s": 3.2}
        begin(pane)
        pane.command("ponder this")
        pane.shows(r"^\(reading the prompt: 25% of 4000 tokens, 3 s\)$")
        daemon.row = {"state": "queued", "age_s": 4.2}
        pane.shows(r"^\(waiting for a turn, 4 s\)$")
        daemon.row = {"state": "decode"}
        pane.until(lambda: "waiting for" not in pane.text(), "the line is gone")
        daemon.ready.set()
        pane.shows("^ponder this$")
        assert "waiting for a turn" not in pane.text()
        daemon.ready.clear()
        pane.press("C-d")
        pane.shows("^READY>$")  # else the chat reads the next command
        daemon.row = {"state": "prefill", "prompt_tokens": 10, "kv_cells": 9}
        pane.command(f"{sys.executable} -m umaserve generate ponder that")
        pane.shows(r"^\(reading the prompt: 90% of 10 tokens\)$")
        daemon.ready.set()
        pane.shows("^ponder that$")
        assert "reading the prompt" not in pane.text()
