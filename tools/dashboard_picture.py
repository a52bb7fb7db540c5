"""Draws docs/dashboard.svg: the dashboard of a real daemon while three programs use it.

``python -m tools.dashboard_picture docs/dashboard.svg``; with other folders for models (``HOME``)
nothing of this machine but its memory and its load is in the picture.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from umaserve.client import Client, ConnectionFailed
from umaserve.dashboard import Screen, View
from umaserve.dashboard.canvas.picture import svg
from umaserve.dashboard.rows import LISTED

SIZE = (110, 32)
START_S, PLAY_S = 600.0, 120.0
EACH_S = 0.04  # between two looks: each request is seen while it runs, and its id is known
SHOWN = "/tmp/uma.sock"  # what the picture says of the socket
# program, lane, prompt, tokens of an answer, s between two
PROGRAMS = (
    ("editor", None, "import os\n\ndef files(path):\n", 32, 1.5),
    ("chat", None, "class Stack:\n    def push(self, item):\n", 200, 0.5),
    ("indexer", "background", "def read(path):\n    return open(path).read()\n" * 8, 120, 0.2),
)


def ask(path: str, over: threading.Event, program: tuple[str, str | None, str, int, float]) -> None:
    """Ask again and again, as this program would."""
    app, lane, prompt, tokens, pause_s = program
    with Client(path) as client:
        count = 0
        while not over.is_set():
            count += 1
            options = {"ignore_eos": True, **({} if lane is None else {"priority": lane})}
            for _ in client.generate(
                prompt, id=f"{app}-{count}", app=app, max_tokens=tokens, **options
            ):
                if over.is_set():
                    return
            over.wait(pause_s)


def watch(path: str) -> View:
    """Look until ten requests are listed, of which one streams, and nobody waits."""
    view, until_s = View(where=SHOWN), time.monotonic() + PLAY_S
    with Client(path) as client:
        while time.monotonic() < until_s:
            view.update(client.overview())
            first = Screen(*SIZE).lines(view)[0].plain
            ids = [str(row["id"]) for row in view.rows]
            apps = {row["app"] for row in view.rows}
            if (
                first.startswith(" Fast: ")
                and "nobody waits" in first
                and len(ids) == LISTED
                and len(apps) == len(PROGRAMS)
                and len(view.overview["sessions"]) > 1
                and not any(id.startswith("#") for id in ids)
            ):
                view.overview = {**view.overview, "log": _shown_log(view.overview["log"], path)}
                return view
            time.sleep(EACH_S)
    raise SystemExit(f"dashboard_picture: no good day in {PLAY_S:.0f} s: {first.strip()}, {ids}")


def _shown_log(entries: list[dict[str, str]], path: str) -> list[dict[str, str]]:
    """Without what was before the daemon served, and without folders of this machine."""
    return [
        {**entry, "text": entry["text"].replace(path, SHOWN)}
        for entry in entries
        if "loading" not in entry["text"]
    ]


def main(words: list[str]) -> int:
    """Write the picture to the file that `words` name."""
    (target,) = words
    with tempfile.TemporaryDirectory(prefix="uma-", dir="/tmp") as folder:
        path, over = f"{folder}/uma.sock", threading.Event()
        command = [
            sys.executable, "-m", "umaserve", "serve", "--model", "demo", "--socket", path,
            "--dashboard", "off", "--http", "off",
        ]  # fmt: skip
        daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            _wait(path, daemon)
            threads = [threading.Thread(target=ask, args=(path, over, each)) for each in PROGRAMS]
            for thread in threads:
                thread.start()
            try:
                view = watch(path)
            finally:
                over.set()
                for thread in threads:
                    thread.join()
        finally:
            daemon.terminate()
            daemon.wait()
    picture = svg(Screen(*SIZE).lines(view), "umaserve top")
    Path(target).write_text(picture + "\n" * (not picture.endswith("\n")), "utf-8")
    return 0


def _wait(path: str, daemon: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and daemon.poll() is None:
        try:
            with Client(path) as client:
                if client.overview()["state"] == "serving":
                    return
        except ConnectionFailed:
            pass
        time.sleep(0.5)
    raise SystemExit("dashboard_picture: the daemon does not serve")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
