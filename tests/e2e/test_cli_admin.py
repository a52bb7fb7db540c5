"""The admin commands and doctor as processes."""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest

from tests.support.fixtures.commands import TIMEOUT, outcome, run, start
from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.server_harness import DaemonProcess
from umaserve.cli.admin import FIRST


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        yield daemon


# --- admin ---------------------------------------------------------------------------------------


def test_metrics(daemon):
    done = run("metrics", "--all", daemon=daemon)
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["model", "fake"],
        ["p95_ms", "-"],
        ["sample", "0"],
        ["errors_total.E", "1"],
    ]
    brief = run("metrics", daemon=daemon).stdout  # what the daemon does not tell is left out
    assert [line.split()[0] for line in brief.splitlines()] == ["model", "p95_ms", "errors_total.E"]
    assert json.loads(run("metrics", "--json", daemon=daemon).stdout)["model"] == "fake"


def test_the_metrics_that_come_first_are_metrics(tmp_path):
    with DaemonProcess(tmp_path) as daemon:
        assert set(FIRST) <= set(daemon.metrics())


def test_metrics_at_an_interval_until_interrupted(daemon):
    child = start("metrics", "--json", "--interval", "0.05", daemon=daemon)
    samples = [json.loads(child.stdout.readline())["sample"] for _ in range(3)]
    child.send_signal(signal.SIGINT)
    assert child.wait(TIMEOUT) == 130
    assert samples == [0, 1, 2]
    assert child.stderr.read() == b""
    child.stdout.close()
    child.stderr.close()


def test_load_shows_progress_and_sends_an_absolute_path(daemon):
    done = run("load", "some/model.gguf", daemon=daemon)
    assert (done.returncode, done.stdout) == (0, "serving fake\n")
    assert done.stderr.splitlines() == [
        "loading: start",
        "loading: weights",
        "loading: warmup",
    ]
    assert daemon.seen[-1].model == os.path.abspath("some/model.gguf")


def test_load_that_fails(daemon):
    done = run("load", "some/text.txt", daemon=daemon)
    assert done.returncode == 2
    assert "E_MODEL_002" in done.stderr and "not a GGUF" in done.stderr


def test_cache_says_what_is_held_and_why_prompts_missed_it(daemon):
    done = run("cache", daemon=daemon)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "2 entries take 3.5 MB of 1.00 GB at most"
    for line in (
        "no key 1 40 1.5 MB 1.4 MB", "ci, session s1 alone 1 90 2.0 MB -",
        "90 2.0 MB 0 ci, session s1 alone (private)", "40 1.5 MB 3 no key You help.\\n",
        "0 of 50 tokens copied: editor, no key",
        "left what is kept at token 12, behind “It is 10:3”", "prompt: “2\\u001b now”",
        "cache: “1 now”", "hint: a clock",
        "0 of 9 tokens copied: a program, no key", "its program wanted none of it",
    ):  # fmt: skip
        assert line in lines, (line, lines)
    assert json.loads(run("cache", "--json", daemon=daemon).stdout)["entries"] == 2


def test_unload_and_priority(daemon):
    assert run("unload", daemon=daemon).returncode == 0
    done = run("priority", "r1", "background", daemon=daemon)
    assert outcome(done) == (0, "r1 is background now\n", "")
    assert (daemon.seen[-1].id, daemon.seen[-1].priority) == ("r1", "background")
    done = run("priority", "nobody", "interactive", daemon=daemon)
    assert (done.returncode, done.stdout) == (3, "")


# --- doctor --------------------------------------------------------------------------------------


def doctor(*arguments: str, tmp_path) -> tuple[int, dict[str, str]]:
    done = run("doctor", *arguments, UMA_CACHE_DIR=str(tmp_path / "empty cache"))
    lines = [line.split(None, 2) for line in done.stdout.splitlines() if line and line[0] != " "]
    assert done.stderr == ""
    return done.returncode, {line[1]: line[0] for line in lines}


def test_doctor_without_a_build(tmp_path):
    status, levels = doctor("--socket", str(tmp_path / "s.sock"), tmp_path=tmp_path)
    assert status == 1
    assert levels["library"] == "missing"
    for name in ("python", "packages", "config", "model", "cache", "socket"):
        assert levels[name] == "ok", name


def test_doctor_on_sockets(tmp_path, daemon):
    live = run("doctor", daemon=daemon, UMA_CACHE_DIR=str(tmp_path / "none")).stdout
    assert f"{daemon.path}: a daemon runs (pid {os.getpid()}, fake)" in live
    stale = str(tmp_path / "stale.sock")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(stale)
    out = run("doctor", "--socket", stale, UMA_CACHE_DIR=str(tmp_path / "none")).stdout
    assert f"{stale} was left behind" in out
    plain = tmp_path / "plain"
    plain.write_text("x")
    _, levels = doctor("--socket", str(plain), tmp_path=tmp_path)
    assert levels["socket"] == "missing"
    _, levels = doctor("--socket", "/no/such/folder/s.sock", tmp_path=tmp_path)
    assert levels["socket"] == "missing"


def test_doctor_on_models_and_settings(tmp_path):
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    status, levels = doctor("--model", str(text), tmp_path=tmp_path)
    assert (status, levels["model"]) == (1, "missing")
    status, levels = doctor("--n-ctx", "lots", tmp_path=tmp_path)
    assert (status, levels["config"]) == (1, "missing")
