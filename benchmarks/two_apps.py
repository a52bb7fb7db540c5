"""What a program's stream gets beside another program that asks for all.

    python -m benchmarks.two_apps
    python -m benchmarks.two_apps --streams 8 --clients 4 --name cuda-qwen2.5-0.5b

One program has one stream.  The other one has one stream too, then eight and a flood of long
prompts.  Nobody names a lane.  The figure is the first program's tokens per second over those that
it has beside one stream.  Our daemon and llama-server are asked in turns.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

import trio

from benchmarks.load import Crowd, window_of_ticks
from benchmarks.setting import Pair, Recorder, Series, pair, parser, setting, show
from benchmarks.sides import Side, quiet_death, settle
from benchmarks.storm import STREAM_WORDS
from benchmarks.timeline import Phase, gaps_ms, percentile, token_rate
from benchmarks.turns import say

BESIDE_ONE_S, BESIDE_ALL_S, WARM_S = 6.0, 10.0, 1.0
OWN, OTHER = "own", "other"


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "two_apps")
    out.add_argument("--streams", type=int, default=8, help="of the other program")
    out.add_argument("--clients", type=int, default=4, help="of it that send long prompts")
    out.add_argument("--words", type=int, default=350, help="of such a prompt")
    out.add_argument("--name", dest="label", help="the same as --label")
    return out


def of_program(phase: Phase, program: str) -> Phase:
    """The streams of one program."""
    own = [s for s in phase.sessions if s.interactive and s.session_id.startswith(f"{program}-")]
    return Phase(phase.name, phase.begin_s, phase.end_s, own)


async def one_side(
    side: Side, bench: Pair, options: argparse.Namespace, run: int, series: Series, keep: Recorder
) -> None:
    """Both stretches of a round on one side; ``run`` -1 is a shorter warm-up without figures."""
    found = bench.setting
    shorter = 0.5 if run < 0 else 1.0
    await settle(side)
    crowd = Crowd(side, found.documents)
    ask, tokens = crowd.keep_asking, found.stream_tokens
    async with trio.open_nursery() as nursery:
        await nursery.start(ask, f"{OWN}-0", STREAM_WORDS, tokens, True)
        await nursery.start(ask, f"{OTHER}-0", STREAM_WORDS, tokens, True)
        await trio.sleep(found.seconds(WARM_S))
        beside_one = await window_of_ticks(crowd, "one", found.seconds(BESIDE_ONE_S * shorter))
        for i in range(1, options.streams):
            nursery.start_soon(ask, f"{OTHER}-{i}", STREAM_WORDS, tokens, True)
        for i in range(options.clients):
            words = found.words(options.words)
            nursery.start_soon(ask, f"{OTHER}-prompts{i}", words, 1, False)
        await trio.sleep(found.seconds(2.0 * WARM_S))
        before = await side.prompt_tokens()
        beside_all = await window_of_ticks(crowd, "all", found.seconds(BESIDE_ALL_S * shorter))
        after = await side.prompt_tokens()
        nursery.cancel_scope.cancel()
    await settle(side)
    if run < 0:
        return
    keep.keep(beside_all, side.name, run)
    one, all_ = (of_program(phase, OWN) for phase in (beside_one, beside_all))
    seconds = beside_all.end_s - beside_all.begin_s
    series.add(
        side.name, one_rate=token_rate(one), all_rate=token_rate(all_),
        share=token_rate(all_) / token_rate(one),
        p95_ratio=percentile(gaps_ms(all_), 95) / percentile(gaps_ms(one), 95),
        other_rate=token_rate(of_program(beside_all, OTHER)),
        prompt_rate=None if before is None or after is None else (after - before) / seconds,
    )  # fmt: skip


def measure(bench: Pair, options: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
    found, series = bench.setting, Series.empty()
    bench.ours.named = True
    for run in range(-1, found.rounds):
        say(f"two apps: {'warm-up' if run < 0 else f'round {run + 1} of {found.rounds}'}")
        for side in bench.in_turns(run):
            trio.run(functools.partial(one_side, side, bench, options, run, series, keep))
    words = found.words(options.words)
    return {
        **found.describe(),
        "streams": options.streams,
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
    with pair(found, options.streams + options.clients + 1) as bench:
        result = measure(bench, options, keep)
    show(result)
    print("written to", keep.save(result, False).name)


if __name__ == "__main__":
    sys.exit(main())
