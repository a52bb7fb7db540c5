"""What polling the metrics costs the ticks: phases with 100 polls a second and without, in turns.

    python -m benchmarks.metrics_polling
    python -m benchmarks.metrics_polling --over http

Ticks are read from the trace, which is written in both kinds of phase.  Phases are short and of
both orders, so that what else the machine does falls on both kinds alike; the result is the ratio
of the p95 over all ticks of a kind, and the median of the ratios of neighbouring phases.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.daemon import Client, Daemon
from benchmarks.models import model_path
from umaserve.metrics.window import quantile

QUESTION = struct.pack("<I", 18) + b'{"type":"metrics"}'
GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
SETTLE_S = 0.1  # of each phase that is left out


def by_socket(path: str) -> tuple[socket.socket, Callable[[], None]]:
    """A connection, and what asks once on it; that raises when the daemon has gone."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)

    def ask() -> None:
        sock.sendall(QUESTION)
        left = struct.unpack("<I", sock.recv(4, socket.MSG_WAITALL))[0]
        sock.recv(left, socket.MSG_WAITALL)

    return sock, ask


def by_http(port: str) -> tuple[socket.socket, Callable[[], None]]:
    """The same over one kept TCP connection."""
    sock = socket.create_connection(("127.0.0.1", int(port)))
    answers = sock.makefile("rb")

    def ask() -> None:
        sock.sendall(GET)
        status, size = answers.readline(), 0
        while (line := answers.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        if not status.startswith(b"HTTP/1.1 200 ") or len(answers.read(size)) != size:
            raise EOFError(status)

    return sock, ask


def poll(address: str, over: str, rate: float) -> None:
    """For ever, ``rate`` times a second; answers are read and thrown away.  A line on stdin starts
    and stops it."""
    sock, ask = by_http(address) if over == "http" else by_socket(address)
    on, due = threading.Event(), 0.0

    def listen() -> None:
        for line in sys.stdin:
            (on.set if line.startswith("on") else on.clear)()
        sock.shutdown(socket.SHUT_RDWR)
        on.set()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        on.wait()
        due = max(due + 1 / rate, time.monotonic() - 1 / rate)
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            ask()
        except (OSError, EOFError, struct.error):
            return


def main() -> int:
    """Long: one measurement, told in the order in which it runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.8, help="of one phase")
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--over", choices=("socket", "http"), default="socket")
    parser.add_argument("--poll", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.poll:
        poll(options.poll, options.over, options.rate)
        return 0
    phases: list[tuple[bool, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        flags = ["--model", str(model_path(options.model)), "--trace", str(trace)]
        flags += ["--threads", options.threads, "--backend", options.backend]
        if options.over == "http":
            flags += ["--http", "127.0.0.1:0"]
        with Daemon(*flags) as daemon:
            address = daemon.path
            if options.over == "http":
                (address,) = re.findall(r"http://\S+:(\d+) answers", daemon.log_path.read_text())
            stop = threading.Event()

            def stream(number: int) -> None:
                with Client(daemon.path) as client:
                    while not stop.is_set():
                        client.generate(f"{number}", "Tell me.", max_tokens=400, ignore_eos=True)

            streams = [
                threading.Thread(target=stream, args=(i,)) for i in range(options.streams)
            ]
            for thread in streams:
                thread.start()
            command = [sys.executable, "-m", "benchmarks.metrics_polling", "--poll", address]
            command += ["--over", options.over, "--rate", str(options.rate)]
            poller = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
            assert poller.stdin is not None
            time.sleep(2.0)
            for number in range(2 * options.pairs):
                on = bool((number + number // 2) % 2)  # off on, on off, ...
                poller.stdin.write("on\n" if on else "off\n")
                poller.stdin.flush()
                time.sleep(SETTLE_S)
                began_s = time.monotonic()
                time.sleep(options.seconds)
                phases.append((on, began_s, time.monotonic()))
            stop.set()
            assert poller.poll() is None, "the polls ended early"
            poller.stdin.close()
            poller.wait(30)
            for thread in streams:
                thread.join()
        ticks = [json.loads(line) for line in trace.read_text().splitlines()]
    walls = [
        [t["wall_ms"] for t in ticks if begin_s < t["end_s"] <= end_s]
        for _, begin_s, end_s in phases
    ]
    p95 = [quantile(wall, 0.95) or 0.0 for wall in walls]
    ratios = []
    for i in range(0, len(phases), 2):
        with_, without = (i, i + 1) if phases[i][0] else (i + 1, i)
        ratios.append(p95[with_] / p95[without])
    kinds = [[ms for (on, *_), wall in zip(phases, walls, strict=True) if on is kind for ms in wall]
             for kind in (False, True)]  # fmt: skip
    for q in (0.5, 0.95):
        without_ms, with_ms = (quantile(kind, q) or 0.0 for kind in kinds)
        print(f"p{100 * q:.0f} of {len(kinds[0])} ticks {without_ms:.3f} ms, of {len(kinds[1])} "
              f"polled {with_ms:.3f} ms: {with_ms / without_ms:.4f}")  # fmt: skip
    print(f"p95 polled / not polled, pair by pair: median {quantile(ratios, 0.5):.4f}, "
          f"from {min(ratios):.4f} to {max(ratios):.4f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
