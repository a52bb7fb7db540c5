"""What do hostile bytes at both doors do to the daemon, and to another program's stream?

    python -m benchmarks.fuzz
    python -m benchmarks.fuzz --seconds 7200 --first 1000000

One program streams answers: alone, then beside a program that sends hostile inputs over the socket
and over HTTP (`benchmarks.fuzz_inputs`), one for each seed.  Figures: the processes that ended,
MiB of front and gateway, answers that are failures of ours with their seeds, the log's errors,
and the stream's 95th percentile of the time between tokens over that alone.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

from benchmarks.daemon import Daemon
from benchmarks.hostile import SETTLE_S, read_along
from benchmarks.http_memory import memory, settled
from benchmarks.machine import save
from benchmarks.models import model_path
from benchmarks.processes import family
from benchmarks.turns import say

LOOKS = 50
ERROR = re.compile(r"^.*\b(?:error|Traceback)\b.*$", re.MULTILINE)
NUMBER = re.compile(r"\d+")


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--model", default="demo", help="demo, a shape of make_model.py, or a path")
    out.add_argument("--seconds", type=float, default=600.0, help="of hostile inputs")
    out.add_argument("--alone", type=float, default=30.0, help="seconds of the stream alone")
    out.add_argument("--first", type=int, default=1, help="seed of the first input")
    out.add_argument("--threads", type=int, default=16, help="that send inputs")
    out.add_argument("--name", default="fuzz", help="of the result file")
    return out


def pids(daemon: Daemon) -> dict[str, int]:
    """The processes whose end is a failure, whatever is sent."""
    gateways = [
        process.pid
        for process in family(daemon.process.pid)[1:]
        if process.status() != "zombie" and "umaserve.gateway" in " ".join(process.cmdline())
    ]
    return {"front": daemon.process.pid, "gateway": gateways[0] if gateways else 0}


class Looks(threading.Thread):
    """Looks at the memory of the daemon's processes, and at the processes."""

    def __init__(self, daemon: Daemon, every_s: float) -> None:
        super().__init__(daemon=True)
        self.found: list[dict[str, float]] = []
        self.other: list[str] = []  # processes that took the place of the first ones
        self._daemon, self._every_s = daemon, every_s
        self._first, self._over = pids(daemon), threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._every_s):
            told = memory(self._daemon.process.pid)
            self.found.append({name: round(told.get(name, 0.0), 1) for name in self._first})
            now = pids(self._daemon)
            self.other += [name for name, pid in self._first.items() if now[name] != pid]

    def end(self) -> None:
        """Stop looking."""
        self._over.set()
        self.join()

    def grown(self) -> dict[str, float]:
        """MiB by which each process is larger in the last fifth than it ever was in the first
        tenth."""
        tenth, fifth = max(len(self.found) // 10, 1), max(len(self.found) // 5, 1)
        return {
            name: statistics.median(look[name] for look in self.found[-fifth:])
            - max(look[name] for look in self.found[:tenth])
            for name in self._first
        }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    model = str(model_path(options.model))
    # answers come again, and drafts of them would change the times
    flags = ("--http", "127.0.0.1:0", "--cache-ram", "1MiB", "--speculate", "off")
    with Daemon("--model", model, *flags) as daemon:
        port = daemon.http_port()
        read_along(daemon.path, SETTLE_S)
        say("fuzz: the stream alone")
        alone = read_along(daemon.path, options.alone)
        words = [daemon.path, str(port), str(options.first), str(options.threads)]
        command = [sys.executable, "-m", "benchmarks.fuzz_app", *words]
        looks = Looks(daemon, options.seconds / LOOKS)
        app = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert app.stdout and app.stdout.readline() == "in\n"
            looks.start()
            say("fuzz: the stream beside hostile inputs")
            beside = read_along(daemon.path, options.seconds)
        finally:
            app.send_signal(signal.SIGTERM)
            told = json.loads(app.communicate()[0] or "{}")
            looks.end()
        settled(daemon)
        after = memory(daemon.process.pid)
        metrics, log = daemon.metrics(), daemon.log_path.read_text()
    errors = Counter(NUMBER.sub("N", line) for line in ERROR.findall(log))
    return {
        "benchmark": "fuzz", "model": options.model, "seconds": options.seconds,
        "first": options.first, "threads": options.threads, **told,
        "ended": looks.other, "looks": looks.found, "grown_mib": looks.grown(), "after_mib": after,
        "alone": alone, "beside": beside, "p95_over_alone": beside["p95_ms"] / alone["p95_ms"],
        "errors_total": metrics["errors_total"], "log_errors": errors.most_common(40),
        "engine_restarts_total": metrics["engine_restarts_total"],
    }  # fmt: skip


def main() -> None:
    options = parser().parse_args()
    began_s = time.monotonic()
    result = measure(options)
    result["took_s"] = time.monotonic() - began_s
    print(json.dumps({name: result[name] for name in result if name != "looks"}, indent=1))
    print("written to", save(options.name, result).name)


if __name__ == "__main__":
    main()
