"""A stream beside clients of long prompts, of which nobody names a lane.

    python -m benchmarks.unlabelled
    python -m benchmarks.unlabelled --clients 4 --words 2500 --name cuda-qwen2.5-0.5b

A stream runs alone, then beside the clients, each a program of its own that sends a prompt which no
cache knows, takes one token and sends the next.  Our daemon and llama-server are asked in turns.
Figures: the stream's 95th percentile of the time between tokens and its longest pause over those
alone, and prompt tokens per second.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

import trio

from benchmarks.load import Crowd, window
from benchmarks.setting import Pair, Recorder, Series, pair, parser, setting, show
from benchmarks.sides import Side, quiet_death, settle
from benchmarks.storm import STREAM_WORDS, watch
from benchmarks.timeline import Phase, gaps_ms, percentile
from benchmarks.turns import say

ALONE_S, BESIDE_S, WARM_S = 6.0, 10.0, 1.0


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "unlabelled")
    out.add_argument("--clients", type=int, default=3)
    out.add_argument("--words", type=int, default=350, help="of a prompt")
    out.add_argument("--name", dest="label", help="the same as --label")
    return out


async def one_side(
    side: Side, bench: Pair, options: argparse.Namespace, run: int, series: Series, keep: Recorder
) -> None:
    """The stream alone and beside the clients; ``run`` -1 is a shorter warm-up without figures."""
    found = bench.setting
    shorter = 0.5 if run < 0 else 1.0
    await settle(side)
    crowd = Crowd(side, found.documents)
    async with trio.open_nursery() as nursery:
        await nursery.start(crowd.keep_asking, "stream", STREAM_WORDS, found.stream_tokens, True)
        await trio.sleep(found.seconds(WARM_S))
        alone = gaps_ms(await window(crowd, "alone", found.seconds(ALONE_S * shorter)))
        for i in range(options.clients):
            words = found.words(options.words)
            nursery.start_soon(crowd.keep_asking, f"client{i}", words, 1, False)
        await trio.sleep(found.seconds(WARM_S))
        beside, rate = await watch(side, crowd, "beside", found.seconds(BESIDE_S * shorter))
        nursery.cancel_scope.cancel()
    await settle(side)
    if run < 0:
        return
    streams = [s for s in beside.sessions if s.interactive]
    gaps = gaps_ms(Phase(beside.name, beside.begin_s, beside.end_s, streams))
    keep.keep(beside, side.name, run)
    p95, longest = percentile(alone, 95), max(alone, default=float("nan"))
    pause = max(gaps, default=float("nan"))
    series.add(
        side.name, alone_p95_ms=p95, p95_ms=percentile(gaps, 95),
        p95_ratio=percentile(gaps, 95) / p95, alone_longest_ms=longest, longest_ms=pause,
        longest_ratio=pause / longest, prompt_rate=rate,
    )  # fmt: skip


def measure(bench: Pair, options: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
    found, series = bench.setting, Series.empty()
    bench.ours.named = True
    for run in range(-1, found.rounds):
        say(f"unlabelled: {'warm-up' if run < 0 else f'round {run + 1} of {found.rounds}'}")
        for side in bench.in_turns(run):
            trio.run(functools.partial(one_side, side, bench, options, run, series, keep))
    words = found.words(options.words)
    return {
        **found.describe(),
        "clients": options.clients,
        "prompt_words": words,
        "prompt_tokens": round(words * found.tokens_per_word),
        "figures": series.spreads(),
    }


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    keep = Recorder(found, found.rounds - 1)
    with pair(found, options.clients + 1) as bench:
        result = measure(bench, options, keep)
    show(result)
    print("written to", keep.save(result, False).name)


if __name__ == "__main__":
    sys.exit(main())
