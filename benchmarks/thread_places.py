"""What it costs that libllama's threads may share a core: decodes after a pause, and without one.

    python -m benchmarks.thread_places

One and twenty tokens on the bundled model by the bare library, right after each other and after
30 ms of nothing, with threads wherever the system puts them and each on cores of its own
(`umaserve.engine.model.thread_places`), each run in a process of its own, in turns.  ``--busy``
processes want a core all the time meanwhile.  Prints medians, and the 10th and 90th percentile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

import numpy as np

from benchmarks.turns import say
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.engine.model.boot import SPIN_COUNT
from umaserve.engine.model.loaded import usable_cores
from umaserve.engine.model.thread_places import find_places, no_places, place_threads
from umaserve.engine.native.batch import Batch

TOKENS, PAUSES_S = (1, 20), (0.0001, 0.03)
TIMES, WARM_UP = 55, 5
FREE, PLACED = "anywhere", "cores of their own"
_BUSY = "while True: pass"


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--threads", type=int, default=usable_cores())
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--busy", type=int, default=0)
    out.add_argument("--run", nargs=3, metavar=("WAY", "TOKENS", "PAUSE_S"), help=argparse.SUPPRESS)
    return out


def one_run(way: str, tokens: int, pause_s: float, threads: int) -> None:
    """Print the milliseconds of each decode; in a process of its own."""
    library = llama.load("cpu")
    model = llama.Model.open(library, str(demo_model_path()), n_gpu_layers=0)
    context = llama.Context.open(
        model, n_ctx=512, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads
    )
    places = find_places({}) if way == PLACED else no_places()
    batch = Batch(library.ffi, max(TOKENS), 1)
    arrays = batch.arrays
    arrays.token[:] = 5 + np.arange(arrays.token.size)
    arrays.pos[:] = np.arange(arrays.pos.size)
    arrays.logits[tokens - 1] = 1
    arrays.n_tokens[0] = tokens
    for turn in range(-WARM_UP, TIMES):
        context.seq_rm(-1)
        time.sleep(pause_s)
        began = time.perf_counter()
        place_threads(places, threads)
        assert library.lib.uma_decode(context.pointer, batch.struct) == 0
        if turn >= 0:
            print(1000.0 * (time.perf_counter() - began))


def main() -> None:
    options = parser().parse_args()
    if options.run:
        way, tokens, pause_s = options.run
        one_run(way, int(tokens), float(pause_s), options.threads)
        return
    environment = {**os.environ, "GOMP_SPINCOUNT": str(SPIN_COUNT)}
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(options.busy)]
    times: dict[tuple[int, float, str], list[float]] = {}
    try:
        for turn in range(options.rounds):
            say(f"round {turn + 1} of {options.rounds}")
            for tokens in TOKENS:
                for pause_s in PAUSES_S:
                    for way in (FREE, PLACED):
                        command = [sys.executable, "-m", "benchmarks.thread_places"]
                        command += ["--threads", str(options.threads), "--run", way]
                        done = subprocess.run(
                            [*command, str(tokens), str(pause_s)], env=environment, check=True,
                            stdout=subprocess.PIPE, text=True,
                        )  # fmt: skip
                        found = times.setdefault((tokens, pause_s, way), [])
                        found += map(float, done.stdout.split())
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for (tokens, pause_s, way), found in times.items():
        low, *_, high = statistics.quantiles(found, n=10)
        print(
            f"{tokens:2} tokens after {1000.0 * pause_s:4.1f} ms, {way:18}: "
            f"{statistics.median(found):6.2f} ms ({low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    main()
