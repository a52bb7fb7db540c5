"""From process start to ready: our daemon, with and without compiled samplers, and llama-server.

``python -m benchmarks.startup``; "umaserve" knows what ticks cost from a start before, "first start
of a model" does not.  Both find everything compiled; "nothing compiled yet" has an empty cache of
compiled code.  Ready is ours when ``info`` says ``serving`` (the first token has been decoded by
then), llama-server's when ``/health`` says so.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

from benchmarks.daemon import Daemon, nothing_measured
from benchmarks.machine import save, spread
from benchmarks.models import model_path
from benchmarks.peers import LlamaServer
from benchmarks.turns import say, take_turns
from umaserve.engine.model.loaded import usable_cores

FIRST = "umaserve, first start of a model"


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--model", default="demo")
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--threads", type=int, default=usable_cores())
    out.add_argument("--no-first", action="store_true", help="leave out the uncompiled start")
    return out


def quick() -> argparse.Namespace:
    """Options of a smoke test."""
    return parser().parse_args(["--rounds", "1", "--threads", "1", "--no-first"])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    model, threads = str(model_path(options.model)), options.threads

    def ours(**environment: str) -> float:
        flags = ("--model", model, "--n-ctx", "2048", "--threads", str(threads))
        with Daemon(*flags, environment=environment) as daemon:
            return daemon.start_s

    def ours_first() -> float:
        with nothing_measured():
            return ours()

    def theirs() -> float:
        with LlamaServer(model, parallel=8, n_ctx=2048, threads=threads) as server:
            return server.start_s

    say("start-up: compiled")
    times = take_turns(
        {"umaserve": ours, FIRST: ours_first, "llama-server": theirs},
        options.rounds,
    )
    result: dict[str, Any] = {
        "model": options.model,
        "threads": threads,
        "ready_s": {name: spread(values) for name, values in times.items()},
        "seconds": times,
    }
    if not options.no_first:
        say("start-up: with an empty cache of compiled code (takes a while)")
        with tempfile.TemporaryDirectory() as folder:
            result["first_start_s"] = ours(NUMBA_CACHE_DIR=folder)
    return result


def main() -> None:
    result = measure(parser().parse_args())
    result.pop("seconds")
    print(json.dumps(result, indent=1))
    print("written to", save("startup", result).name)


if __name__ == "__main__":
    main()
