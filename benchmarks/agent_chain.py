"""Agent chain: 8 requests one after another, each with all that was said before, beside decoders.

    python -m benchmarks.agent_chain
    python -m benchmarks.agent_chain --decoders 8 --step-tokens 80

The time from the first request to the last token, with 4 streams decoding in the background, over
that of the same chain alone.  A chain that takes longer than the limit is stopped at a step and its
time scaled by its tokens (``stopped`` counts how often).
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any

import trio

from benchmarks.load import Crowd, ask
from benchmarks.setting import Pair, Recorder, Series, pair, parser, setting, show
from benchmarks.sides import Side, quiet_death, settle
from benchmarks.sweep import start_all
from benchmarks.timeline import token_rate
from benchmarks.turns import say

LIMIT_S = 40.0
FIRST_WORDS, MORE_WORDS = 60, 30


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "agent_chain")
    out.add_argument("--steps", type=int, default=8)
    out.add_argument("--step-tokens", type=int, default=40)
    out.add_argument("--decoders", type=int, default=4)
    return out


async def chain(crowd: Crowd, steps: int, tokens: int, limit_s: float) -> tuple[float, bool]:
    """Seconds of the whole chain, and whether it was stopped and scaled."""
    context = crowd.documents.words(FIRST_WORDS)
    began = time.perf_counter()
    for step in range(steps):
        session = crowd.new("agent", True)
        await ask(crowd.side, session, context, tokens, keep_text=True, chain=True)
        context += session.text + "\n" + crowd.documents.words(MORE_WORDS)
        took = time.perf_counter() - began
        if took > limit_s and step + 1 < steps:
            return took * steps / (step + 1), True
    return time.perf_counter() - began, False


async def one_side(
    side: Side, bench: Pair, options: argparse.Namespace, run: int, series: Series, keep: Recorder
) -> int:
    found, stopped = bench.setting, 0
    steps = options.steps if run >= 0 else 2
    limit = found.seconds(LIMIT_S)
    took: dict[int, float] = {}
    for n in (0, options.decoders):
        await settle(side)
        crowd = Crowd(side, found.documents)
        async with trio.open_nursery() as nursery:
            each = found.stream_tokens // max(1, n)
            names = [f"decoder{i}" for i in range(n)]
            await start_all(crowd, nursery, names, words=16, n=each, interactive=False)
            began = time.perf_counter()
            took[n], cut = await chain(crowd, steps, options.step_tokens, limit)
            stopped += cut
            phase = crowd.phase(f"chain{n}", began)
            nursery.cancel_scope.cancel()
        if run >= 0:
            keep.keep(phase, side.name, run)
            if n:
                series.add(side.name, decoders_tokens_per_s=token_rate(phase, False))
    await settle(side)
    if run >= 0:
        alone, beside = took[0], took[options.decoders]
        series.add(side.name, alone_s=alone, beside_s=beside, makespan_ratio=beside / alone)
    return stopped


def measure(bench: Pair, options: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
    found, series = bench.setting, Series.empty()
    stopped = {side.name: 0 for side in bench.in_turns(0)}
    for run in range(-1, found.rounds):
        say(f"agent chain: {'warm-up' if run < 0 else f'round {run + 1} of {found.rounds}'}")
        for side in bench.in_turns(run):
            call = functools.partial(one_side, side, bench, options, run, series, keep)
            stopped[side.name] += trio.run(call)
    return {
        **found.describe(),
        "benchmark": "agent_chain",
        "steps": options.steps,
        "step_tokens": options.step_tokens,
        "decoders": options.decoders,
        "stopped": stopped,
        "figures": series.spreads(),
    }


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    keep = Recorder(found, found.rounds - 1)
    with pair(found, options.decoders + 1) as bench:
        result = measure(bench, options, keep)
    show(result)
    print("written to", keep.save(result, not options.no_plot).name)


if __name__ == "__main__":
    sys.exit(main())
