"""The daemon's log: quiet, one object a line where asked, requests by their id."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.server_harness import DaemonProcess
from umaserve.server.logs import Log


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
    assert "meanwhile" not in stream.getvalue() and "meanwhile" in log.recent[-1]
    log.release()
    log.release()
    assert stream.getvalue().count("before") == stream.getvalue().count("meanwhile") == 1


def test_a_closed_stream_stops_nobody() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    log = Log("info", False, Broken())
    log("info", "one")
    log("info", "two")
    assert [line[9:] for line in log.recent] == ["one", "two"]


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
