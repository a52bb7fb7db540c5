"""Does a busy front slow the ticks?  200 connections that poll metrics and send garbage.

``python -m benchmarks.busy_front``; needs cores to spare beside the library's threads, or the
operating system lets the crowd have the library's.  One greedy stream after another; quiet and busy
stretches take turns within one daemon, and its trace tells the ticks of each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import streams
from benchmarks.daemon import Daemon
from benchmarks.machine import save, spread
from benchmarks.models import model_path
from benchmarks.prompts import prompts
from benchmarks.turns import say
from umaserve.system.processor import logical_cores

QUIET, BUSY = "quiet", "busy"
POLL_MS = 200
_GREEDY = {"temperature": 0.0}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--model", default="micro-151k", help="a shape of make_model.py, or a path")
    out.add_argument("--connections", type=int, default=200)
    out.add_argument("--tokens", type=int, default=400, help="of a stretch")
    out.add_argument("--rounds", type=int, default=6)
    out.add_argument("--threads", type=int, default=max(1, logical_cores() // 4))
    out.add_argument("--name", default="busy_front", help="of the result file")
    out.add_argument("--crowd", metavar="SOCKET", help=argparse.SUPPRESS)
    return out


def crowd(path: str, n: int) -> None:
    """Be a crowd until killed: three in four poll metrics, the others send what is no request."""
    rng = random.Random(1)
    selector = selectors.DefaultSelector()
    poll = streams.frame({"type": "metrics", "interval_ms": POLL_MS})

    def join(polls: bool) -> None:
        sock = streams.unix(path)
        sock.sendall(poll if polls else rng.randbytes(64))
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, polls)

    for i in range(n):
        join(i % 4 != 0)
    print("in", flush=True)
    while True:
        for key, _ in selector.select():
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                if key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                    continue
            selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            time.sleep(0.002)
            join(key.data)


@contextlib.contextmanager
def present(path: str, n: int):  # type: ignore[no-untyped-def]
    """A crowd in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.busy_front", "--crowd", path]
    process = subprocess.Popen(
        [*command, "--connections", str(n)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        if process.stdout.readline() != "in\n":
            raise RuntimeError("the crowd could not get in")
        time.sleep(0.3)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    stretches: dict[str, list[tuple[float, float]]] = {QUIET: [], BUSY: []}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "ticks.jsonl"
        flags = ("--model", str(model_path(options.model)), "--threads", str(options.threads))
        with Daemon(*flags, "--n-ctx", "2048", "--trace", str(trace)) as daemon:

            def stretch(name: str, turn: int) -> None:
                began = time.monotonic()
                daemon.run([prompts(8)[turn % 8]], options.tokens, _GREEDY)
                if turn >= 0:
                    stretches[name].append((began, time.monotonic()))

            for turn in range(-1, options.rounds):
                say(f"busy front: round {turn + 1} of {options.rounds}")
                stretch(QUIET, turn)
                with present(daemon.path, options.connections):
                    stretch(BUSY, turn)
                time.sleep(0.3)
            errors = daemon.metrics()["errors_total"]
        ticks = [json.loads(line) for line in trace.read_text().splitlines()]
    found: dict[str, list[list[float]]] = {
        name: [within(ticks, *span) for span in spans] for name, spans in stretches.items()
    }
    p95 = {name: [spread_p95(one) for one in lists] for name, lists in found.items()}
    everything = {name: sum(lists, []) for name, lists in found.items()}
    return {
        "model": options.model,
        "threads": options.threads,
        "connections": options.connections,
        "tick_ms": {name: spread(values) for name, values in everything.items()},
        "tick_p95_ms": {name: spread(values) for name, values in p95.items()},
        "p95_ratio": spread([b / q for b, q in zip(p95[BUSY], p95[QUIET], strict=True)]),
        "garbage_refused": sum(errors.values()),
    }


def within(ticks: list[dict[str, Any]], began_s: float, ended_s: float) -> list[float]:
    """Periods in ms of the ticks that decode, one after another, between two times."""
    chosen = [t for t in ticks if began_s < t["end_s"] < ended_s and not t["prefill_tokens"]]
    return [1e3 * (b["end_s"] - a["end_s"]) for a, b in zip(chosen, chosen[1:], strict=False)]


def spread_p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def main() -> None:
    options = parser().parse_args()
    if options.crowd:
        crowd(options.crowd, options.connections)
    if logical_cores() < 4:
        say(f"{os.cpu_count()} cores are none to spare: the crowd takes the library's")
    result = measure(options)
    print(json.dumps(result, indent=1))
    print("written to", save(options.name, result).name)


if __name__ == "__main__":
    main()
