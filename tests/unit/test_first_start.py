"""What ``make run`` shows while it makes what is missing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tools.first_start import COMPILED, LIBRARY, STEPS, Progress, left_text

ROOT = Path(__file__).parents[2]
SETUP = (
    "setting up .venv (Python packages)\n"
    "Looking in indexes: https://index.example/simple\n"
    + "".join(f"Collecting p{n}\n  Downloading p{n}.whl\n" for n in range(60))
    + "Installing collected packages: p1\nSuccessfully installed p1\n"
)
LLAMA = (
    "Backend cpu: no GPU\nFetching the source ...\n  Fetching the source: 90% after 6 s\n"
    "Configuring libllama (cpu) ...\nCompiling libllama (cpu) ...\n"
    + "".join(f"  Compiling libllama (cpu): {n}% after {n} s\n" for n in range(10, 100, 10))
    + "Compiling samplers and scheduler ...\nCompiling uma-chat ...\n"
    + "".join(f"  Compiling uma-chat: {n}% after {n} s\n" for n in range(10, 100, 10))
    + "Compiling uma-chat: done in 99.0 s\n  Compiling samplers and scheduler: 70% after 5 s\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "venv/make-run.log"


def fake_make(folder: Path, setup: str = "", llama: str = "", status: int = 0) -> Path:
    """A program in the place of ``make``, whose targets print texts; the last ends so."""
    for name, text in (("setup", setup), ("llama", llama)):
        (folder / name).write_text(text)
    program = folder / "make"
    program.write_text(f'#!/bin/sh\ncat "{folder}/$2" >&2\n[ "$2" = setup ] || exit {status}\n')
    program.chmod(0o755)
    return program


def prepare(make: Path, log: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.first_start", str(log), str(make)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_file_gets_few_lines_and_the_log_gets_all(tmp_path: Path, log: Path) -> None:
    done = prepare(fake_make(tmp_path, SETUP, LLAMA), log)
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert len(lines) <= 8
    assert f"(details: {log})" in lines[0]
    steps = [line for line in lines if re.match(r"make run: \d of \d: ", line)]
    begun = [re.sub(r"^make run: (\d of \d: [\w ]+?)( \d+%)?, .*", r"\1", each) for each in steps]
    assert begun == [
        "1 of 6: virtual environment", "2 of 6: Python packages",
        "3 of 6: libllama", "3 of 6: libllama",
        "4 of 6: chat layer and scheduler", "4 of 6: chat layer and scheduler",
    ]  # fmt: skip
    assert all(re.search(r", (up to|less than) .* left$", each) for each in steps)
    assert lines[-1].endswith("6 of 6: the model")
    assert log.read_text() == SETUP + LLAMA


def test_where_nothing_is_missing_nothing_is_said(tmp_path: Path, log: Path) -> None:
    done = prepare(fake_make(tmp_path, "make[1]: Nothing to be done for 'setup'.\n"), log)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not log.exists()


def test_a_failure_shows_the_end_of_the_log_and_what_to_do(tmp_path: Path, log: Path) -> None:
    broken = LLAMA + "build_llama: compiling failed (exit code 1).\n  | error: no more\n"
    broken += "make[1]: *** [Makefile:60: llama] Error 1\n"
    done = prepare(fake_make(tmp_path, SETUP, broken, status=3), log)
    assert done.returncode == 3
    assert "  | error: no more\n" in done.stderr and "make[1]" not in done.stderr
    *_, told, what = done.stderr.splitlines()
    assert told.startswith("make run: stopped at step 4 of 6, chat layer and scheduler")
    assert str(log) in told and "`make run` goes on from there" in what
    assert len(done.stderr.splitlines()) < 45
    assert log.read_text() == SETUP + broken


def test_warnings_are_not_left_to_the_log(tmp_path: Path, log: Path) -> None:
    lost = "warning: the Vulkan build failed; building for the CPU instead\n"
    done = prepare(fake_make(tmp_path, SETUP, LLAMA + lost), log)
    assert lost in done.stderr


def test_a_terminal_gets_one_line(tmp_path: Path, log: Path) -> None:
    pty = pytest.importorskip("pty")
    make = fake_make(tmp_path, SETUP, LLAMA)
    lines = make.read_text().splitlines(True)
    make.write_text("".join([*lines[:-1], "sleep 1.2\n", lines[-1]]))  # time to be drawn
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "tools.first_start", str(log), str(make)],
        cwd=ROOT, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:  # how Linux tells the end
        pass
    os.close(ours)
    assert done.wait() == 0
    drawn = said.decode()
    assert drawn.count("\n") == 1, drawn
    assert re.search(r"\r\[#+-+\] 2 of 6: Python packages \d+%, up to \d minutes left \(", drawn)
    assert re.search(r"\r\[#+-*\] 4 of 6: chat layer and scheduler 70%, .* left", drawn)
    assert "\r\x1b[Kmake run: all is built after 0:" in drawn


def test_interrupted_it_ends_what_runs(tmp_path: Path, log: Path) -> None:
    make = fake_make(tmp_path, SETUP)
    make.write_text(f"#!/bin/sh\necho setting up venv\necho $$ >{tmp_path}/pid\nexec sleep 600\n")
    started = subprocess.Popen(
        [sys.executable, "-m", "tools.first_start", str(log), str(make)],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert started.stderr is not None
    assert "the first start builds" in started.stderr.readline()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert started.poll() is None
        time.sleep(0.01)
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    started.send_signal(signal.SIGINT)
    _, told = started.communicate(timeout=30)
    assert started.returncode == 130 and "interrupted" in told and "Traceback" not in told
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running()


def test_the_encoder_of_pictures_is_a_step_of_its_own() -> None:
    progress = Progress(1)
    for line in ("Compiling samplers and scheduler ...", "Compiling uma-eyes ..."):
        progress.read(line)
    progress.read("  Compiling uma-eyes: 41% after 15 s")
    assert progress.text(time.monotonic()).startswith("5 of 6: encoder of pictures 41%, ")


def test_the_pace_of_a_step_tells_what_is_left() -> None:
    progress = Progress(packages=10)
    assert progress.left_s(0.0) == 0.0
    progress.read("Compiling libllama (cpu) ...\n")
    began_s = time.monotonic()
    usual_s = [seconds for _, seconds in STEPS]
    assert progress.left_s(began_s) == pytest.approx(sum(usual_s[LIBRARY:]))
    progress.read("  Compiling libllama (cpu): 50% after 300 s\n")
    rest_s = sum(usual_s[COMPILED:])
    assert progress.left_s(began_s + 300) == pytest.approx(300 + rest_s, abs=5)
    progress.read("  40% of the functions\n")
    progress.read("Compiling samplers and scheduler (once, one to two minutes) ...\n")
    assert progress.share == 0.0
    progress.read("  40% of the functions\n")
    assert progress.share == 0.4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "less than a minute left"), (50, "up to a minute left"), (61, "up to 2 minutes left")],
)
def test_what_is_left_in_words(seconds: float, text: str) -> None:
    assert left_text(seconds) == text
