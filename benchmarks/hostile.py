"""What does a hostile program cost another program's stream?

    python -m benchmarks.hostile
    python -m benchmarks.hostile --model qwen2.5-0.5b --seconds 30 --rounds 3

One program streams answers: alone, beside a program that behaves and keeps the daemon busy, and
beside a program that floods it (`benchmarks.hostile_app`), in turns.  Figures: the stream's 95th
percentile of the time between tokens and its longest pause, over those beside the program that
behaves; answers refused and tokens lost.  Both other programs have the lowest priority for the
processor, so that the daemon's work for them is compared and not their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.daemon import Client, Daemon
from benchmarks.machine import save, spread
from benchmarks.models import model_path
from benchmarks.prompts import prompts
from benchmarks.timeline import percentile
from benchmarks.turns import say

ALONE, POLITE, HOSTILE = "alone", "polite", "hostile"
TOKENS = 256
SETTLE_S = 2.0


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--model", default="demo", help="demo, a shape of make_model.py, or a path")
    out.add_argument("--seconds", type=float, default=120.0, help="of a stretch")
    out.add_argument("--rounds", type=int, default=1)
    out.add_argument("--parallel", type=int, default=8)
    out.add_argument("--polite-streams", type=int, default=0, help="0: all sequences but one")
    out.add_argument("--sides", default=f"{ALONE},{POLITE},{HOSTILE}")
    out.add_argument("--name", default="hostile", help="of the result file")
    return out


@contextlib.contextmanager
def beside(kind: str, path: str, streams: int) -> Iterator[None]:
    """The other program, in a process of its own."""
    if kind == ALONE:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.hostile_app", kind, path, str(streams)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        if process.stdout.readline() != "in\n":
            raise RuntimeError("the other program could not begin")
        time.sleep(SETTLE_S)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def read_along(path: str, seconds: float) -> dict[str, Any]:
    """Stream one answer after the other for so long."""
    gaps: list[float] = []
    firsts: list[float] = []
    answers = refused = lost = 0
    until_s = time.perf_counter() + seconds
    with Client(path) as client:
        while time.perf_counter() < until_s:
            answers += 1
            asked_s = time.perf_counter()
            fields = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0}
            try:
                times, _ = client.generate(f"{answers}", prompts(64)[answers % 64], **fields)
            except RuntimeError:
                refused += 1
                continue
            lost += TOKENS - len(times)
            firsts.append(1e3 * (times[0] - asked_s))
            gaps += [1e3 * (b - a) for a, b in zip(times, times[1:], strict=False)]
    return {
        "p50_ms": percentile(gaps, 50), "p95_ms": percentile(gaps, 95), "longest_ms": max(gaps),
        "ttft_p95_ms": percentile(firsts, 95),
        "answers": answers, "refused": refused, "tokens_lost": lost,
    }  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sides = options.sides.split(",")
    streams = options.polite_streams or options.parallel - 1
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    flags = ("--model", str(model_path(options.model)), "--parallel", str(options.parallel))
    with Daemon(*flags) as daemon:
        read_along(daemon.path, 3)
        for turn in range(options.rounds):
            for side in sides:
                say(f"hostile: round {turn + 1} of {options.rounds}, {side}")
                with beside(side, daemon.path, streams):
                    found[side].append(read_along(daemon.path, options.seconds))
                settle(daemon)
        metrics = daemon.metrics()
    figures = {
        side: {name: spread([run[name] for run in runs]) for name in runs[0]}
        for side, runs in found.items()
    }
    result: dict[str, Any] = {
        "benchmark": "hostile", "model": options.model, "seconds": options.seconds,
        "parallel": options.parallel, "polite_streams": streams, "figures": figures,
        "errors_total": metrics["errors_total"],
        "engine_restarts_total": metrics["engine_restarts_total"],
    }  # fmt: skip
    if POLITE in found and HOSTILE in found:
        for name in ("p95_ms", "longest_ms", "ttft_p95_ms"):
            pairs = zip(found[HOSTILE], found[POLITE], strict=True)
            result[f"hostile_over_polite_{name}"] = spread([h[name] / p[name] for h, p in pairs])
    return result


def settle(daemon: Daemon) -> None:
    """Until nothing of the other program is left."""
    while daemon.metrics()["active_sessions"]:
        time.sleep(0.1)
    time.sleep(0.5)


def main() -> None:
    options = parser().parse_args()
    result = measure(options)
    print(json.dumps(result, indent=1))
    print("written to", save(options.name, result).name)


if __name__ == "__main__":
    main()
