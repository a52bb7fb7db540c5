"""The daemon's log: quiet, one object a line where asked, requests by their id."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.server_harness import DaemonProcess
from umaserve.server import main
from umaserve.server.log.lines import COMPARED, Log, Repeats


def test_json_lines_have_their_fields() -> None:
    stream = io.StringIO()
    log = Log("info", True, stream)
    log("debug", "not this")
    log("warn", "two\nlines", request="é", connection="c1")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["time"].endswith("Z") and len(entry["time"]) == len("2026-01-01T00:00:00.000Z")
    del entry["time"]
    assert entry == {
        "level": "warn", "message": "two\nlines", "request": "é", "connection": "c1"
    }  # fmt: skip


@pytest.mark.parametrize("as_json", [True, False])
def test_lines_wait_while_a_screen_owns_the_terminal(as_json: bool) -> None:
    stream = io.StringIO()
    log = Log("info", as_json, stream)
    log("info", "before")
    log.hold = True
    log("error", "meanwhile")
    assert "meanwhile" not in stream.getvalue() and log.recent[-1]["text"] == "meanwhile"
    log.release()
    log.release()
    assert stream.getvalue().count("before") == stream.getvalue().count("meanwhile") == 1


def test_lines_that_come_again_are_counted() -> None:
    now = [0.0]
    stream = io.StringIO()
    log = Log("info", False, stream)
    log._repeats = Repeats(lambda: now[0])

    def lines() -> list[str]:
        out = [line[9:] for line in stream.getvalue().splitlines()]
        stream.seek(0)
        stream.truncate()
        return out

    for tenth in range(250):
        now[0] = tenth / 10
        log("warn", "no descriptors")
        if tenth == 120:
            log("info", "no descriptors")  # another level, another line
    # the first at once; a word after ten seconds, the next twenty later
    assert lines() == [
        "warn: no descriptors", "warn: no descriptors (repeated 99 times in 10 s)",
        "no descriptors",
    ]  # fmt: skip
    now[0] = 31.0
    log.tell_repeats()  # no line comes any more
    assert lines() == ["warn: no descriptors (repeated 150 times in 21 s)"]
    now[0] = 200.0
    log.tell_repeats()
    log("warn", "no descriptors")  # long ago: it is news again
    log("warn", "no descriptors")
    log.release()
    assert lines() == ["warn: no descriptors", "warn: no descriptors (repeated once in 0 s)"]


def test_only_the_newest_lines_are_compared_with() -> None:
    stream = io.StringIO()
    log = Log("info", True, stream)
    for i in range(1000):
        log("info", f"line {i % 500}")
    assert len(stream.getvalue().splitlines()) == 1000
    assert len(log._repeats._lines) <= COMPARED + 1


def test_a_stream_that_fails_for_a_while_is_written_again() -> None:
    class Full(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError("no space left on device")
            return super().write(text)

    stream = Full()
    log = Log("info", False, stream)
    log("info", "one")
    stream.full = False
    log("info", "two")
    assert "two" in stream.getvalue()


def test_a_closed_stream_stops_nobody() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    log = Log("info", False, Broken())
    log("info", "one")
    log("info", "two")
    assert [line["text"] for line in log.recent] == ["one", "two"]


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_daemon_that_runs_well_says_little(tmp_path: Path, level: str) -> None:
    with (
        DaemonProcess(tmp_path, log_json=True, log_level=level) as daemon,
        daemon.client() as client,
    ):
        for i in range(5):
            client.generate("x", id=f"r{i}", max_tokens=3)
        client.ask("bad", "x" * 70000)
        client.finish()
    entries = [json.loads(line) for line in daemon.log.splitlines()]
    assert all({"time", "level", "message"} <= set(entry) for entry in entries)
    about = [entry for entry in entries if "request '" in entry["message"]]
    if level == "info":
        assert about == []
        # loading (where it is slow), serving, shutting down, stopped
        assert entries[-1]["message"] == "stopped"
        assert {entry["level"] for entry in entries} == {"info"}
    else:
        assert [entry["request"] for entry in about] == [f"r{i}" for i in range(5)]
        assert all(entry["request"] in entry["message"] for entry in about)


def test_a_load_that_takes_long_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, lines = [0.0], []
    monkeypatch.setattr(main.time, "monotonic", lambda: now_s[0])
    daemon = SimpleNamespace(log=lambda level, text: lines.append(text))
    starting = SimpleNamespace(daemon=daemon, model=SimpleNamespace(path="m.gguf"))
    report = main._Run._plain_progress(starting)  # type: ignore[arg-type]
    for now_s[0], fraction, stage in (
        (0.5, 0.0, "start"), (1.5, 0.1, "weights"), (2.0, 0.3, "weights"), (6.4, 0.6, "weights"),
        (6.6, 0.6, "weights"), (30.0, 0.6, "weights"), (31.0, 1.0, "context"),
        (32.0, 1.0, "warmup"),
    ):  # fmt: skip
        report(fraction, stage)
    assert lines == [
        "loading m.gguf: weights 10%", "loading m.gguf: weights 60%", "loading m.gguf: context",
    ]  # fmt: skip
