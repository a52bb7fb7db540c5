"""``umaserve bench`` as a command: which daemon, what it refuses, how it ends."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.bench_results import made
from tests.support.fixtures.commands import environment, outcome, run
from tests.support.fixtures.tmux_pane import MISSING, Pane, tmux
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.assets import demo_model_path
from umaserve.bench import target
from umaserve.cli import bench as command
from umaserve.client import Client

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"UMA_THREADS": "1", "UMA_BACKEND": "cpu"}
SHORT = ("--seconds", "0.5", "--interactive", "1", "--prompt-words", "30")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    settings = {"threads": 1, "backend": "cpu", "latency_cap": 50.0}
    with DaemonProcess(folder, engine=[], model=str(demo_model_path()), **settings) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: DaemonProcess) -> Iterator[DaemonProcess]:
    yield shared
    shared.idle()


class Bench:
    """The command, started; its lines on stderr as they come."""

    def __init__(self, *arguments: str, **extra: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "umaserve", "bench", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=ROOT, env=environment(**SETTINGS, **extra),
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def says(self, text: str) -> None:
        eventually(lambda: any(text in line for line in self.lines), text)

    def ends(self) -> tuple[int, str]:
        """Exit status and standard output."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        status = self.process.wait(60)
        self._reader.join(10)
        assert not any("Traceback" in line for line in self.lines), self.lines
        return status, out


def test_a_running_daemon_is_measured_and_left_as_it_was(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    before = daemon.metrics()
    file = tmp_path / "r.json"
    # Half a second is too little for the background's first token where others use the cores.
    bench = Bench(*SHORT, "--seconds", "2", "--socket", daemon.path, "--json", str(file))
    status, out = bench.ends()
    assert (status, daemon.process.poll()) == (0, None), bench.lines
    assert f"bench: the running daemon ({daemon.path})" in bench.lines
    assert "\ncap held: " in out and "the cap is 50.00" in out
    assert "\nwithout labels: pace " in out
    assert list(told_phases := json.loads(file.read_text())["phases"])[2] == "unlabelled"
    assert told_phases["unlabelled"]["background_tokens_per_s"] > 0
    told = json.loads(file.read_text())
    assert told["own_daemon"] is False and told["machine"]["model"] == "UMA Serve demo"
    nobody = {"at_once": 0, "came": 0}
    assert [phase["others"] for phase in told["phases"].values()] == [nobody] * 3
    after = daemon.metrics()
    assert after["errors_total"] == before["errors_total"]
    assert after["requests_total"] > before["requests_total"]
    eventually(lambda: not daemon.info()["sessions"], "nothing of it is left")


class Company(threading.Thread):
    """Another application, which always has an answer under way."""

    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self.path, self.over = path, threading.Event()
        self.reasons: list[str] = []

    def run(self) -> None:
        with Client(self.path) as client:
            while not self.over.is_set():
                stream = client.generate("x = ", id="company", max_tokens=500, ignore_eos=True)
                self.reasons.append(stream.completion().reason)

    def __enter__(self) -> Company:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join(60)


def test_company_during_the_baseline_is_said_and_not_disturbed(daemon: DaemonProcess) -> None:
    with Company(daemon.path) as company:
        eventually(lambda: daemon.info()["sessions"], "the other application is there")
        status, out = Bench(*SHORT, "--cap", "100", "--socket", daemon.path).ends()
        assert status == 0
        text = " ".join(out.split())
        assert "note: The daemon was busy with others during the baseline" in text
        assert "requests of others: " in text and "no clean baseline" in text
        eventually(
            lambda: [s["id"] for s in daemon.info()["sessions"]] == ["company"], "it goes on"
        )
    assert company.reasons and set(company.reasons) == {"length"}


def test_an_interrupt_leaves_nothing_at_a_running_daemon(daemon: DaemonProcess) -> None:
    bench = Bench("--seconds", "60", "--socket", daemon.path)
    bench.says("interactive alone")
    eventually(lambda: len(daemon.info()["sessions"]) == 3, "three streams")
    bench.process.send_signal(signal.SIGINT)
    assert bench.ends() == (130, "")
    daemon.idle()
    assert daemon.process.poll() is None


def test_more_streams_than_sequences_are_refused(daemon: DaemonProcess) -> None:
    done = run("bench", "--interactive", "9", "--socket", daemon.path)
    assert done.returncode == 2 and done.stdout == ""
    assert "decodes 8 sequences at once" in done.stderr and "--parallel" in done.stderr
    assert daemon.info()["sessions"] == []


def test_a_daemon_without_a_model_is_told_apart(daemon: DaemonProcess) -> None:
    with Client(daemon.path) as client:
        client.unload()
        try:
            done = run("bench", "--socket", daemon.path)
        finally:
            client.load(str(demo_model_path()))
    assert done.returncode == 2
    assert "has no model" in done.stderr and "--fresh" in done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files, with a path that is short enough for a socket below it."""
    with tempfile.TemporaryDirectory(prefix="bench-test-") as made_here:
        yield Path(made_here)


@contextmanager
def own_daemon(bench: Bench, folder: Path) -> Iterator[None]:
    """Knows the processes that the command has started, and that they are gone at the end."""
    found = eventually(
        lambda: psutil.Process(bench.process.pid).children(recursive=True), "a daemon is started"
    )
    yield
    found += [p for p in found if p.is_running() for p in p.children(recursive=True)]
    gone, alive = psutil.wait_procs(found, timeout=30)
    assert not alive
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "stage", "status"),
    [(signal.SIGINT, "interactive alone", 130), (signal.SIGTERM, "starting a daemon", 143)],
)
def test_a_signal_leaves_no_daemon_behind(
    number: signal.Signals, stage: str, status: int, folder: Path, tmp_path: Path
) -> None:
    absent = str(tmp_path / "nobody.sock")
    bench = Bench("--seconds", "60", "--socket", absent, TMPDIR=str(folder))
    bench.says(f"bench: {stage}")
    with own_daemon(bench, folder):
        if stage == "interactive alone":
            engine = psutil.Process(bench.process.pid).children(recursive=True)
            assert len(engine) >= 2, "front and engine"
        bench.process.send_signal(number)
        assert bench.ends() == (status, "")
    assert bench.lines[0].startswith(f"bench: no daemon at {absent} (")


def test_a_daemon_that_dies_meanwhile_is_an_error(folder: Path) -> None:
    bench = Bench("--fresh", "--seconds", "60", TMPDIR=str(folder))
    bench.says("warming up")
    with own_daemon(bench, folder):
        (front,) = psutil.Process(bench.process.pid).children()
        front.kill()
        status, _ = bench.ends()
    assert status == 2
    assert any("the benchmark's own daemon ended" in line for line in bench.lines)


def test_a_model_that_is_not_there_is_said_with_the_daemons_words(tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    done = run("bench", "--model", str(missing))
    assert done.returncode == 2 and done.stdout == ""
    assert f"{missing} does not exist" in done.stderr


@pytest.mark.skipif(tmux() is None, reason=MISSING)
def test_it_fits_a_terminal_of_eighty_columns(daemon: DaemonProcess, tmp_path: Path) -> None:
    with Pane(80, 60, tmp_path, **SETTINGS) as pane:
        line = f"{shlex.quote(sys.executable)} -m umaserve bench --socket {daemon.path} "
        pane.command(f"cd {shlex.quote(str(ROOT))}; clear; {line} --seconds 1; echo status $?")
        pane.shows(r"^interactive alone +[━╸╺ ]+ +\d+ s left, p95 [\d.]+ ms")
        pane.shows(r"^status \d+")
        lines = [line for line in pane.lines() if line]
        bars = [line for line in lines if "━" in line]
        assert [bar[:20].strip() for bar in bars] == [
            "the machine", "the running daemon", "warming up", "interactive alone",
            "with background", "first tokens", "without labels", "a desk",
        ]  # fmt: skip
        assert all("━" * 20 in bar for bar in bars)
        table = [line for line in lines if re.search(r"( +[\d.,]+| +-){5}$", line)]
        assert len(table) >= 18
        verdict, again = (at for at, line in enumerate(lines) if line.startswith("cap held: "))
        assert lines[verdict + 2].startswith("without labels: ")
        assert verdict == lines.index(bars[-1]) + 1 and lines[again + 1] == "status 0"


# --- what needs no daemon -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fresh", "--socket", "/x"], "--fresh starts a daemon of its own"),
        (["--model", "m.gguf", "--socket", "/x"], "--model starts a daemon of its own"),
        (["--seconds", "0"], "from 0.5 to 3600"),
        (["--interactive", "many"], "'many' is no number"),
        (["--cap", "nan"], "'nan' is no number from 1 to 100"),
        (["--report", "/nowhere/x.html"], "/nowhere does not exist"),
        (["--json", "/"], "is a folder"),
        (["--frehs"], "did you mean --fresh?"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(arguments: list[str], words: str) -> None:
    status, out, err = outcome(run("bench", *arguments))
    assert (status, out) == (2, "")
    assert words in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("mixed_ms", "others", "status"),
    [(11.0, 0.0, 0), (13.0, 0.0, 4), (None, 0.0, 2), (13.0, 0.5, 2), (11.0, 0.5, 0)],
)
def test_the_exit_status_is_the_verdict_which_comes_first(
    mixed_ms: float | None,
    others: float,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mixed = [] if mixed_ms is None else [mixed_ms] * 200
    result = made([10.0] * 200, mixed, used_by_others=others)
    monkeypatch.setattr("umaserve.bench.run.run", lambda *_: result)
    file = tmp_path / "r.json"
    assert command.bench(["--fresh", "--json", str(file)]) == status
    assert json.loads(file.read_text())["command"] == "umaserve bench"
    words = {0: "cap held: ", 4: "CAP MISSED: ", 2: "no verdict"}[status]
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0].startswith(words) and lines[1].startswith("without labels: ")
    assert lines[-2].startswith(words), "behind the table, before the files"


def test_a_socket_fits_wherever_temporary_files_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("short", "long" * 30):
        where = folder / name
        where.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(where))
        made_here = Path(target.private_folder())
        try:
            assert len(str(made_here / target.SOCKET)) <= 103
            assert made_here.stat().st_mode & 0o077 == 0
            assert (made_here.parent == where) == (name == "short")
        finally:
            made_here.rmdir()
        assert list(where.iterdir()) == []


def test_the_help_names_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.bench(["--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 84
    for words in ("0 the cap was held", f"{command.EXIT_MISSED} it was missed", "130 interrupted"):
        assert words in " ".join(text.split())


def test_the_benchmark_knows_only_the_clients_half() -> None:
    """No import of the daemon's insides, nor of the development benchmarks."""
    # the standard library alone
    helpers = {
        "umaserve.system", "umaserve.system.own_file", "umaserve.system.own_python",
        "umaserve.system.process_stats", "umaserve.system.processor",
        "umaserve.visible",
    }  # fmt: skip
    known = {"umaserve.bench", "umaserve.client", "umaserve.metrics", *helpers}
    for path in (ROOT / "umaserve/bench").rglob("*.py"):
        found = re.findall(
            r"^\s*(?:from|import) (umaserve\.\w+|benchmarks)", path.read_text(), re.M
        )
        assert set(found) <= known, path.name
