"""The dashboard as a person meets it: a real daemon under load, a real terminal, real keys."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.fixtures.tmux_pane import MISSING, Pane, tmux
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.assets import demo_model_path
from umaserve.client import Client, ConnectionFailed, ServerError

pytestmark = pytest.mark.skipif(tmux() is None, reason=MISSING)

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"n_ctx": 8192, "threads": 1, "backend": "cpu"}
UMASERVE = f"cd {shlex.quote(str(ROOT))} && {shlex.quote(sys.executable)} -m umaserve"


class Load:
    """Clients that always have a long answer in flight, each under one id."""

    def __init__(self, path: str, **lanes: str) -> None:
        self.path = path
        self.reasons: dict[str, list[str]] = defaultdict(list)
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=item, daemon=True) for item in lanes.items()
        ]

    def _ask(self, id: str, lane: str) -> None:
        try:
            with Client(self.path) as client:
                while not self._over.is_set():
                    prompt = "def f(x):\n" * (1 if lane == "interactive" else 30)
                    stream = client.generate(
                        prompt, id=id, max_tokens=2000, priority=lane, ignore_eos=True
                    )
                    with stream:
                        for _ in stream:
                            if self._over.is_set():
                                break
                    if stream.eos is not None:
                        self.reasons[id].append(stream.eos.reason)
        except ConnectionFailed:
            return  # the daemon has been stopped, which is for the test to judge

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(20)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("daemon")
    model = str(demo_model_path())
    with DaemonProcess(directory, engine=[], model=model, wait=False, **SETTINGS) as daemon:
        eventually(daemon.reachable, "the daemon listens")
        for _ in range(6):  # the first start ever compiles
            try:
                eventually(daemon.serving, "the daemon serves")
                break
            except AssertionError:
                assert daemon.process.poll() is None, daemon.log
        yield daemon


def lane_of(daemon: DaemonProcess, id: str) -> str | None:
    return next((s["lane"] for s in daemon.info()["sessions"] if s["id"] == id), None)


def choose(pane: Pane, id: str) -> None:
    """Move the selection to the row of a request."""

    def there() -> bool:
        rows = [line for line in pane.lines() if re.match(r"[▸ ] \S+ +\S+ +(inter|back)", line)]
        ids = [row.split()[1 if row[0] == "▸" else 0] for row in rows]
        at = next((n for n, row in enumerate(rows) if row[0] == "▸"), None)
        if at is None:
            pane.press("Home")
        elif ids[at] == id:
            return True
        elif id in ids:
            way = ids.index(id) - at
            pane.press(*(["j"] * way if way > 0 else ["k"] * -way))
        time.sleep(0.3)  # until the screen shows what the keys did
        return False

    pane.until(there, f"{id} is selected")


def has_figures(lines: list[str]) -> bool:
    """Whether both lanes have their six; the background's come late, it may get few tokens."""
    rows = [line for line in lines if re.match(r" (interactive|background) ", line)]
    return [len(re.findall(r"\d[\d,.]*", row)) for row in rows] == [6, 6]


def check_screen(lines: list[str], width: int, height: int) -> None:
    """Every part is in its place and the numbers are there."""
    assert len(lines) <= height + 1 and max(map(len, lines)) <= width
    assert re.match(r" (Fast|Slow|Busy|Overloaded): [\d,]+ tokens/s, \d apps?, ", lines[0])
    assert re.match(r" UMA Serve demo · cpu · up 0:\d\d:\d\d · /", lines[1])
    assert re.match(r" CPU █*░* +\d+% .* memory █*░* [\d.]+ of [\d.]+ GB", lines[2])
    whole = "\n".join(lines)
    assert has_figures(lines), whole
    assert set("▁▂▃▄▅▆▇█") & set("".join(lines[4:10])), "the curves"
    for words in (
        r"p95 / cap", r"tokens/s +[\d,.]+ now", r"tick +[█░]+ [\d.]+ of [\d.]+ ms",
        r"batch +[█▒]+ ", r"ΣBMT ", r"guard ", r"KV cells +█+░* [\d,]+ of 8,192",
        r"cache ", r"parked ", r"RSS +\d\.\d\d GB", r"errors +\d",
        r"requests: \d+ now · \d+ queued · [\d,]+ so far|─ \S+ of \S+ · \w+: ",
        r"id +app +lane +state +tokens +tok/s +p95 +age",
        r"(▸| ) chat +\S+ +interactive decode +[\d,]+ +[\d.,]+ +[\d.]+ +\d:\d\d:\d\d",
    ):  # fmt: skip
        assert re.search(words, whole), f"{words}\n{whole}"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_under_load_promote_one_and_cancel_another(
    daemon: DaemonProcess, tmp_path: Path, width: int, height: int
) -> None:
    load = Load(daemon.path, chat="interactive", report="background", index="background")
    with load, Pane(width, height, tmp_path) as pane:
        before = pane.settings()
        pane.command(f"clear; {UMASERVE} top --socket {daemon.path}")
        for id in ("chat", "report", "index"):
            pane.shows(rf"^  {id} +\S+ +\w+ +decode")
        pane.press("m")
        pane.until(lambda: re.search(r"tokens/s +[\d.]+ now", pane.text()), "a rate")
        pane.until(lambda: has_figures(pane.lines()), "figures of both lanes")
        check_screen(pane.lines(), width, height)
        rows = {s["id"]: s for s in daemon.info()["sessions"] if s["state"] == "decode"}
        for row in rows.values():
            # all but the newest token, and what came between the two readings
            known = row["prompt_tokens"] + row["tokens"]
            assert known - 8 <= row["kv_cells"] <= known + 8, row
        assert pane.ask("alternate_on") == "1" and pane.ask("cursor_flag") == "0"

        def promoted() -> bool:
            choose(pane, "report")
            pane.press("p")
            try:
                pane.shows(r"report is interactive now|^▸ report +\S+ +interactive", 5)
            except AssertionError:  # it ended just then, and the next one has its name
                return False
            return lane_of(daemon, "report") == "interactive"

        pane.until(promoted, "report is promoted")
        (tmp_path / f"promoted-{width}x{height}.txt").write_text(pane.text())
        count = len(load.reasons["index"])

        def cancelled() -> bool:
            choose(pane, "index")
            pane.press("c")
            pane.shows("c again cancels index of", 10)
            assert "cancel" not in load.reasons["index"][count:], "one press is a question"
            pane.press("c")
            try:
                pane.shows("index is cancelled", 5)
            except AssertionError:
                return False
            return True

        pane.until(cancelled, "index is cancelled")
        pane.until(lambda: "cancel" in load.reasons["index"][count:], "its client was told")
        assert "cancel" not in load.reasons["chat"] + load.reasons["report"]
        check_screen(pane.lines(), width, height)
        (tmp_path / f"cancelled-{width}x{height}.txt").write_text(pane.text())

        pane.press("q")
        pane.shows("^READY>")
        assert pane.ask("alternate_on") == "0" and pane.ask("cursor_flag") == "1"
        assert pane.settings() == before


def test_the_last_error_on_a_small_screen_and_on_a_large_one(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    with Pane(80, 24, tmp_path) as pane:
        pane.command(f"clear; {UMASERVE} top --socket {daemon.path}")
        pane.shows("UMA Serve demo")
        with Client(daemon.path) as client, pytest.raises(ServerError):
            client.complete("x" * 100_000, id="whole-project")
        told = r"^ \d\d:\d\d:\d\d E_LIMIT_001 whole-project of \S+: prompt is 100000 bytes"
        pane.shows(told)
        assert not re.search("last errors", pane.text())
        pane.resize(200, 50)
        pane.shows("^─ last errors ─+ log ─+$")
        pane.shows(told + "; the limit is 65536 ")
        pane.press("q")
        pane.shows("^READY>")


def test_resizing_pausing_and_help(daemon: DaemonProcess, tmp_path: Path) -> None:
    with Load(daemon.path, chat="interactive"), Pane(80, 24, tmp_path) as pane:
        pane.command(f"{UMASERVE} top --socket {daemon.path}")
        pane.shows("^  chat +")
        pane.resize(132, 40)
        pane.until(lambda: len(pane.lines()[0].rstrip()) <= 132 and "first" in pane.text(), "wide")
        pane.shows("^─ log ─+$")
        (rule,) = (line for line in pane.lines() if line.startswith("─ log "))
        assert len(rule) == 132
        pane.resize(60, 16)
        pane.until(lambda: any(len(line) == 60 for line in pane.lines()), "narrow")
        pane.until(lambda: max(len(line) for line in pane.lines()) <= 60, "nothing is left over")
        pane.shows("^  chat +")
        pane.resize(80, 24)
        pane.press("?")
        pane.shows("promote it to the interactive lane")
        pane.press("Escape")
        pane.shows("^  chat +")
        pane.press("Space")
        pane.shows(" PAUSED$")
        time.sleep(0.5)  # a screen on its way is drawn to its end
        still, made = pane.text(), daemon.metrics()["tokens_generated_total"]
        pane.until(lambda: daemon.metrics()["tokens_generated_total"] > made + 20, "time passes")
        assert pane.text() == still
        pane.press("Space")
        pane.until(lambda: "PAUSED" not in pane.text() and pane.text() != still, "it goes on")
        pane.press("q")
        pane.shows("^READY>")


def test_details_a_filter_and_the_last_ten(daemon: DaemonProcess, tmp_path: Path) -> None:
    """At both sizes that people have; requests that end stay, with the ids that they had."""
    for width, height in ((80, 24), (120, 40)):
        with Pane(width, height, tmp_path) as pane:
            pane.command(f"clear; {UMASERVE} top --socket {daemon.path}")
            pane.shows("^ (Idle|Fast|Slow|Busy|Overloaded)")
            with Load(daemon.path, chat="interactive"):
                pane.shows("^  chat +")
                with Client(daemon.path) as client:
                    for n in range(11):
                        client.complete("import os\n", max_tokens=2, app=f"tool{n}")
                    pane.shows(r"^  \S+ +tool10 +interactive +\S")
                listed = re.findall(r"^[▸ ] \S+ +(\S+) +(?:inter|back)", pane.text(), re.M)
                tools = [int(app.removeprefix("tool")) for app in listed if "tool" in app]
                assert len(listed) == 10, "what runs, and chats that have ended, are others"
                assert tools == [*range(10, 10 - len(tools), -1)] and len(tools) > 5, pane.text()
                choose(pane, "chat")
                pane.press("Enter")
                pane.shows(r"^ prompt +\d+ tokens")
                pane.shows(r"^ answer +[\d,]+ tokens?, ")
                pane.press("Escape")
                pane.shows(r"^▸ chat +")
                pane.press("/", "o", "l", "9", "Enter")
                pane.shows("requests with “ol9”: 1")
                pane.until(lambda: not _is_listed(pane, "tool8"), "the others are not listed")
                pane.press("Escape")
                pane.until(lambda: _is_listed(pane, "tool8"), "they are again")
            pane.shows("^ Idle: nobody asks, the last answer ended ")
            pane.press("q")
            pane.shows("^READY>")


def _is_listed(pane: Pane, app: str) -> bool:
    """Whether a request of ``app`` has a line; the lines of programs may name it all the same."""
    return bool(re.search(rf"^[▸ ] \S+ +{app} +(?:inter|back)", pane.text(), re.M))


def test_another_model_is_loaded_by_l(daemon: DaemonProcess, tmp_path: Path) -> None:
    with Pane(80, 24, tmp_path) as pane:
        pane.command(f"clear; {UMASERVE} top --socket {daemon.path}")
        pane.shows("^ Idle")
        before = daemon.info()["model"]["engine_pid"]
        pane.press("l")
        pane.shows("load which model")
        pane.press("End")
        pane.shows("^▸ demo, the bundled model")
        pane.press("Enter")
        pane.until(lambda: (daemon.info()["model"] or {}).get("engine_pid") != before, "a new one")
        pane.shows("uma-demo.gguf is served now")
        pane.press("q")
        pane.shows("^READY>")


def process_of(command: str) -> psutil.Process:
    return eventually(
        lambda: next(
            (
                p
                for p in psutil.process_iter(["cmdline"])
                if p.info["cmdline"] and " ".join(p.info["cmdline"][1:]).endswith(command)
            ),
            None,
        ),
        command,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_the_terminal_is_as_it_was_after_a_signal(
    daemon: DaemonProcess, tmp_path: Path, number: signal.Signals
) -> None:
    with Pane(80, 24, tmp_path) as pane:
        before = pane.settings()
        pane.command(f"clear; {UMASERVE} top --socket {daemon.path}; echo status $?")
        pane.shows("UMA Serve demo")
        process_of(f"-m umaserve top --socket {daemon.path}").send_signal(number)
        pane.shows(rf"^status {128 + number}$")
        assert pane.ask("alternate_on") == "0" and pane.ask("cursor_flag") == "1"
        assert pane.settings() == before


def test_stopped_by_ctrl_z_and_brought_back(daemon: DaemonProcess, tmp_path: Path) -> None:
    with Pane(80, 24, tmp_path) as pane:
        before = pane.settings()
        pane.command(f"clear; {UMASERVE} top --socket {daemon.path}")
        pane.shows("UMA Serve demo")
        pane.press("C-z")
        pane.shows("Stopped")
        assert pane.ask("alternate_on") == "0" and pane.ask("cursor_flag") == "1"
        assert pane.settings() == before
        pane.command("clear; bg")
        pane.shows("&")
        assert pane.settings() == before, "in the background, the terminal is the shell's"
        assert pane.ask("alternate_on") == "0"
        pane.command("fg")
        pane.shows("UMA Serve demo")
        assert pane.ask("alternate_on") == "1"
        pane.press("?")
        pane.shows("promote it to the interactive lane")
        pane.press("C-c")
        pane.shows("^READY>")
        assert pane.settings() == before


def test_a_dumb_terminal(daemon: DaemonProcess, tmp_path: Path) -> None:
    with Pane(120, 24, tmp_path) as pane:
        pane.command(f"clear; export TERM=dumb; {UMASERVE} top --socket {daemon.path}")
        pane.shows(r"^\d\d:\d\d:\d\d UMA Serve demo: [\d.]+ tok/s, \d active, \d queued, p95 ")
        assert pane.ask("alternate_on") == "0"
        pane.press("C-c")
        pane.shows("READY>$")


def test_without_colour(daemon: DaemonProcess, tmp_path: Path) -> None:
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:[34][0-7]|9[0-7])(?:;\d+)*m")  # 39 is none
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Pane(80, 24, tmp_path, **environment) as pane:
            pane.command(f"clear; {UMASERVE} top --socket {daemon.path}")
            pane.shows("UMA Serve demo")
            pane.shows("q quit")
            assert bool(colour.search(pane.text(styles=True))) == coloured


def test_the_daemon_s_own_dashboard(tmp_path: Path) -> None:
    """``python -m umaserve`` in a terminal: loads, shows, takes keys, and ends in good order."""
    path = tmp_path / "own.sock"
    with Pane(80, 24, tmp_path) as pane:
        before = pane.settings()
        words = f"--model demo --socket {path} --threads 1 --backend cpu"
        pane.command(f"clear; {UMASERVE} {words}; echo status $?")
        pane.shows("^ UMA Serve demo · cpu · up ", 4 * 90)
        with Load(str(path), chat="interactive", report="background") as load:
            pane.shows(r"^  chat +\S+ +interactive +decode")
            choose(pane, "report")
            pane.press("p")
            pane.shows(r"^▸ report +\S+ +interactive|report has ended|report is interactive")
            choose(pane, "report")
            pane.press("c", "c")
            pane.until(lambda: "cancel" in load.reasons["report"], "its client was told")
        pane.press("q")
        pane.shows("q again stops the daemon")
        pane.press("q")
        pane.shows("^status 0$")
        assert pane.ask("alternate_on") == "0" and pane.ask("cursor_flag") == "1"
        assert pane.settings() == before
        assert "stopped" in pane.text() and not path.exists()
