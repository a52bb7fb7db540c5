"""A stream beside clients of long prompts, of which nobody names a lane.

    python -m benchmarks.unlabelled
    python -m benchmarks.unlabelled --clients 4 --words 2500 --name cuda-qwen2.5-0.5b
    python -m benchmarks.unlabelled --labels --first-minute --words 1200

A stream runs alone, then beside the clients, each a program of its own that sends a prompt which no
cache knows, takes one token and sends the next.  Our daemon and llama-server are asked in turns.
Figures: the stream's 95th percentile of the time between tokens and its longest pause over those
alone, and prompt tokens per second.

With ``--labels`` our stream says that it is interactive, and the clients that they are not.  With
``--first-minute`` each round has new daemons that have measured nothing, and nothing warms them up.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

import trio

from benchmarks.daemon import nothing_measured
from benchmarks.load import Crowd, window
from benchmarks.setting import Pair, Recorder, Series, Setting, pair, parser, setting, show
from benchmarks.sides import Side, quiet_death, settle
from benchmarks.storm import STREAM_WORDS, watch
from benchmarks.timeline import Phase, gaps_ms, percentile
from benchmarks.turns import say

ALONE_S, BESIDE_S, WARM_S = 6.0, 10.0, 1.0


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "unlabelled")
    out.add_argument("--clients", type=int, default=3)
    out.add_argument("--words", type=int, default=350, help="of a prompt")
    out.add_argument("--labels", action="store_true", help="name the lanes of all requests")
    out.add_argument("--first-minute", action="store_true", help="new daemons for each round")
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


def one_round(
    bench: Pair, options: argparse.Namespace, run: int, series: Series, keep: Recorder
) -> None:
    """Both sides; ``run`` -1 is the warm-up."""
    rounds = bench.setting.rounds
    say(f"{options.benchmark}: {'warm-up' if run < 0 else f'round {run + 1} of {rounds}'}")
    bench.ours.named = not options.labels
    for side in bench.in_turns(run):
        trio.run(functools.partial(one_side, side, bench, options, run, series, keep))


def measure(found: Setting, options: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
    series, most = Series.empty(), options.clients + 1
    if options.first_minute:
        for run in range(found.rounds):
            with nothing_measured(), pair(found, most) as bench:
                one_round(bench, options, run, series, keep)
    else:
        with pair(found, most) as bench:
            for run in range(-1, found.rounds):
                one_round(bench, options, run, series, keep)
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
    if options.labels:
        options.benchmark = "labelled"
    if options.first_minute:
        options.benchmark += "_first_minute"
    found = setting(options)
    keep = Recorder(found, found.rounds - 1)
    result = measure(found, options, keep)
    show(result)
    print("written to", keep.save(result, False).name)


if __name__ == "__main__":
    sys.exit(main())
