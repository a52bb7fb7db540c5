"""Text by a model or a daemon on a terminal and in a pipe: shown there, as it is here."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.support.fixtures.commands import TIMEOUT, environment, run
from tests.support.fixtures.fake_daemon import HOSTILE, FakeDaemon
from tests.support.fixtures.untimed import untimed
from umaserve.bench.progress import Stages
from umaserve.bench.report import table
from umaserve.cli import bench as cli_bench
from umaserve.dashboard.canvas.terminal import Terminal
from umaserve.server.log.lines import Log
from umaserve.visible import for_reader, visible

from hypothesis import given, strategies as st  # isort: skip

RAW = "".join(HOSTILE)
SHOWN = (
    r"\u001b]0;mine\u0007\u001b[31mred\u009b2J\u001b[2Jhidden\u000dseen\u202eabc\u2066\u007f"
    "\tü\nend"
)
# what must not reach a terminal; rich and `doctor` send colours and movements of their own
OBEYED = re.compile("[\x07\x7f-\x9f\u202e\u2066]|\x1b\\]|\x1b\\[2J|hidden\r")


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(str(tmp_path / "d.sock"), name=RAW.replace("\n", " ")) as daemon:
        yield daemon


def on_a_terminal(daemon: FakeDaemon, *words: str, typed: bytes = b"") -> str:
    """What a command writes to a terminal that is its input and all its output."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "umaserve", *words],
        stdin=slave, stdout=slave, stderr=slave, env=environment(daemon, TERM="xterm"),
    )  # fmt: skip
    os.close(slave)
    if typed:
        os.write(master, typed)
    out = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # as Linux says that the last writer has gone
            break
        if not data:
            break
        out += data
    os.close(master)
    child.wait(TIMEOUT)
    text = out.decode().replace("\r\n", "\n")
    assert not OBEYED.search(text), text
    return text


# --- the spelling --------------------------------------------------------------------------------


def test_what_a_terminal_obeys_is_spelled_out() -> None:
    assert visible(RAW) == SHOWN
    assert "".join(visible(piece) for piece in HOSTILE) == SHOWN


def test_text_to_read_stays_as_it_is() -> None:
    text = "def f():\n\treturn 'ü 😀 👩\u200d🔧 עברית\u200e \u00a0'\n"
    assert visible(text) == text


@untimed
@given(st.text())
def test_json_stays_the_same_json(text: str) -> None:
    shown = visible(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
    assert not OBEYED.search(shown) and "\x1b" not in shown


def test_files_and_pipes_get_it_raw() -> None:
    assert for_reader(RAW, io.StringIO()) == RAW
    assert for_reader(RAW, Tty()) == SHOWN


# --- the commands --------------------------------------------------------------------------------


def test_generate(daemon: FakeDaemon) -> None:
    assert on_a_terminal(daemon, "generate", "-p", "command") == SHOWN + "\n"
    assert run("generate", "-p", "command", daemon=daemon).stdout.encode() == RAW.encode()
    whole = ("generate", "-p", "command", "--no-stream")
    assert on_a_terminal(daemon, *whole) == SHOWN + "\n"
    assert run(*whole, daemon=daemon).stdout == RAW


def test_generate_as_json(daemon: FakeDaemon) -> None:
    command = ("generate", "-p", "command", "--json")
    for text in (on_a_terminal(daemon, *command), run(*command, daemon=daemon).stdout):
        # str.splitlines would take more for line ends
        events = [json.loads(line) for line in text.split("\n") if line]
        assert "".join(event.get("text", "") for event in events) == RAW


def test_errors_of_a_server(daemon: FakeDaemon) -> None:
    assert SHOWN in on_a_terminal(daemon, "generate", "-p", "curse")
    assert RAW in run("generate", "-p", "curse", daemon=daemon).stderr


def test_chat(daemon: FakeDaemon) -> None:
    text = on_a_terminal(daemon, "chat", typed=b"command\ncurse\nand again\n/exit\n")
    assert text.count(SHOWN) == 2 and "and again " in text
    assert SHOWN.replace("\n", " ") in text  # the model's name
    history = daemon.seen[-1].messages
    assert history[1].content == RAW  # the model gets its own words back
    assert run("chat", daemon=daemon, stdin="command\n").stdout == RAW + "\n"


@pytest.mark.parametrize(
    "words",
    [["metrics"], ["metrics", "--json"], ["load", "m.gguf"], ["doctor"], ["top", "--once"]],
    ids=" ".join,
)
def test_names_that_a_daemon_tells(daemon: FakeDaemon, words: list[str]) -> None:
    text = on_a_terminal(daemon, *words)
    if words[0] != "top":  # which shows its own sign
        assert r"\u009b2J" in text and "mine" in text


def test_words_of_the_command_line(daemon: FakeDaemon) -> None:
    assert r"\u001b]0;x" in on_a_terminal(daemon, "generate", "--x\x1b]0;x")
    assert r"x\u009b2J" in on_a_terminal(daemon, "priority", "x\x9b2J", "background")


# --- the daemon's log, and what is drawn with rich -----------------------------------------------


@pytest.mark.parametrize("as_json", [True, False])
def test_the_log_spells_names_out_for_whoever_reads_it(as_json: bool) -> None:
    stream = io.StringIO()
    log = Log("info", as_json, stream)
    log("warn", RAW, request="\x9b2J")
    written = stream.getvalue()
    assert not OBEYED.search(written) and "\x1b" not in written
    if as_json:
        entry = json.loads(written)
        assert (entry["message"], entry["request"]) == (RAW, "\x9b2J")
    else:
        assert written.endswith(f"warn: {SHOWN}\n")


def test_a_dashboard_without_a_screen() -> None:
    file = io.StringIO()
    Terminal(Console(file=file)).say(RAW)
    assert file.getvalue().endswith(SHOWN + "\n")


def test_the_result_of_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    result = SimpleNamespace(notes=[RAW], verdict=None, pace=None)
    monkeypatch.setattr(table, "text", lambda result: RAW)
    monkeypatch.setattr(table, "verdict_text", lambda result: "held")
    monkeypatch.setattr(table, "unlabelled_text", lambda result: "held too")
    monkeypatch.setattr(sys, "stdout", Tty())
    cli_bench._show(result, [Path(RAW)])  # type: ignore[arg-type]
    text = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert not OBEYED.search(text) and text.count(r"\u009b2J") == 3


def test_stages_of_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    for term in ("xterm", "dumb"):
        file = Tty()
        monkeypatch.setattr(sys, "stderr", file)
        monkeypatch.setenv("TERM", term)
        with Stages() as stages:
            stages.stage("the running daemon", RAW)
            stages.ended("[/no markup] " + RAW)
        text = file.getvalue()
        assert not OBEYED.search(text) and "[/no markup]" in text and r"\u009b2J" in text
