"""What the dashboard costs: ``python -m benchmarks.dashboard_cost``.

A daemon serves the bundled model to four clients that always have an answer in flight.  Meanwhile
``umaserve top`` draws on a pseudo-terminal of each size, four times a second, and ``psutil`` says
how much processor time it took, as a share of one core.  Then the same with the daemon's own
dashboard, as the difference that it makes to the front process; that one has noise of a few tenths,
as the front does most for the tokens.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from umaserve.client import Client, UmaError

SIZES = ((80, 24), (200, 50))
STREAMS = 4
WARM_S = 3.0


@contextmanager
def on_terminal(width: int, height: int, *words: str) -> Iterator[tuple[psutil.Process, list[int]]]:
    """A process with a terminal of its own, and how many bytes it has written there."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(
        [sys.executable, "-m", "umaserve", *words],
        stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    written = [0]

    def read() -> None:
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # the last one that had the terminal open is gone
                return
            if not data:
                return
            written[0] += len(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield psutil.Process(child.pid), written
    finally:
        child.terminate()
        child.wait(60)
        reader.join(5)
        os.close(master)


@contextmanager
def load(path: str) -> Iterator[None]:
    over = threading.Event()

    def ask(lane: str) -> None:
        try:
            with Client(path) as client:
                while not over.is_set():
                    with client.generate(
                        "def f(x):", max_tokens=900, priority=lane, ignore_eos=True
                    ) as stream:
                        for _ in stream:
                            if over.is_set():
                                break
        except UmaError as error:
            if not over.is_set():
                print(f"a client ended: {error}", file=sys.stderr)

    lanes = ["interactive", "background"] * (STREAMS // 2)
    threads = [threading.Thread(target=ask, args=(lane,), daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(10)


def share(process: psutil.Process, seconds: float) -> float:
    """Processor time of a process, without its children, in percent of one core."""
    time.sleep(WARM_S)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return 100 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


def wait_for(path: str) -> None:
    for _ in range(3000):
        try:
            with Client(path, timeout=5) as client:
                if client.info()["state"] == "serving":
                    return
        except UmaError:
            time.sleep(0.1)
        time.sleep(0.1)
    raise SystemExit(f"no daemon came up at {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What the dashboard costs.")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="uma-bench-") as folder:
        path = str(Path(folder) / "uma.sock")
        serve = ("serve", "--socket", path, "--threads", "1")
        print("what                            of one core   written")
        base = {}
        for dashboard in ("off", "on"):
            with on_terminal(80, 24, *serve, "--dashboard", dashboard) as (front, written):
                wait_for(path)
                for name in ("idle", "busy"):
                    with load(path) if name == "busy" else tempfile.SpooledTemporaryFile():
                        at = written[0]
                        percent = share(front, options.seconds)
                        rate = (written[0] - at) / (options.seconds + WARM_S)
                        if dashboard == "off":
                            base[name] = percent
                        else:
                            percent -= base[name]
                            label = f"own dashboard 80x24, {name}"
                            print(f"{label:30} {percent:10.2f} % {rate:9.0f} B/s", flush=True)
                        if dashboard == "off":
                            for width, height in SIZES:
                                attach = ("top", "--socket", path)
                                with on_terminal(width, height, *attach) as (top, drawn):
                                    percent = share(top, options.seconds)
                                    rate = drawn[0] / (options.seconds + WARM_S)
                                label = f"umaserve top {width}x{height}, {name}"
                                print(f"{label:30} {percent:10.2f} % {rate:9.0f} B/s", flush=True)


if __name__ == "__main__":
    main()
