"""Sessions 1 to 32: tokens per second and time between tokens, ours and llama-server.

    python -m benchmarks.sweep
    python -m benchmarks.sweep --model moe-micro --sessions 1,8

That many background streams decode at once (short prompts, unique); they are watched once each has
its first token, from the end of a tick to the end of another.  Tokens per second of all together,
and the 95th percentile of the time between tokens.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any

import trio

from benchmarks.load import Crowd, window_of_ticks
from benchmarks.setting import Pair, Recorder, Series, pair, parser, setting, show
from benchmarks.sides import Side, quiet_death, settle
from benchmarks.timeline import gaps_ms, percentile, token_rate
from benchmarks.turns import say

WINDOW_S, START_S = 4.0, 30.0
WORDS = 16


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "sweep")
    out.add_argument("--sessions", default="1,2,4,8,16,32")
    out.add_argument("--sweep-priority", choices=("background", "interactive"),
                     default="background")  # fmt: skip
    return out


async def start_all(crowd: Crowd, nursery: trio.Nursery, names: list[str], **how: Any) -> None:
    """Start streams together; return when all have a first token, or after half a minute."""
    with trio.move_on_after(START_S):
        async with trio.open_nursery() as starting:
            for name in names:
                call = functools.partial(
                    nursery.start, crowd.keep_asking, name, how["words"], how["n"],
                    how["interactive"],
                )  # fmt: skip
                starting.start_soon(call)


async def one_side(
    side: Side, bench: Pair, n: int, interactive: bool, seconds: float, run: int, series: Series,
    keep: Recorder,
) -> None:  # fmt: skip
    found = bench.setting
    crowd = Crowd(side, found.documents)
    each = max(32, min(1024, found.n_ctx // n - 64))
    await settle(side)
    async with trio.open_nursery() as nursery:
        names = [f"s{i}" for i in range(n)]
        await start_all(crowd, nursery, names, words=WORDS, n=each, interactive=interactive)
        await trio.sleep(0.25 * seconds)
        phase = await window_of_ticks(crowd, f"sessions{n}", seconds)
        nursery.cancel_scope.cancel()
    await settle(side)  # the other one's turn
    if run >= 0:
        keep.keep(phase, side.name, run)
        gaps = gaps_ms(phase, interactive)
        series.add(
            side.name,
            **{f"tokens_per_s@{n}": token_rate(phase), f"p95_ms@{n}": percentile(gaps, 95)},
        )


def measure(bench: Pair, options: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
    """Every count in turns; one short look at the middle count warms both sides up."""
    found, series = bench.setting, Series.empty()
    counts = [int(n) for n in options.sessions.split(",")]
    interactive = options.sweep_priority == "interactive"
    began = time.perf_counter()
    for run in range(-1, found.rounds):
        for n in counts if run >= 0 else counts[len(counts) // 2 :][:1]:
            say(f"sweep: round {run + 1}, {n} sessions, {time.perf_counter() - began:.0f} s")
            for side in bench.in_turns(run):
                call = functools.partial(
                    one_side, side, bench, n, interactive, found.seconds(WINDOW_S), run, series,
                    keep,
                )  # fmt: skip
                trio.run(call)
    return {
        **found.describe(),
        "benchmark": "sweep",
        "sessions": counts,
        "priority": options.sweep_priority,
        "figures": series.spreads(),
        "tokens_ours_over_theirs": {
            str(n): series.ours_over_theirs(f"tokens_per_s@{n}") for n in counts
        },
    }


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    keep = Recorder(found, found.rounds - 1)
    with pair(found, max(int(n) for n in options.sessions.split(","))) as bench:
        result = measure(bench, options, keep)
    show(result)
    print("written to", keep.save(result, not options.no_plot).name)


if __name__ == "__main__":
    sys.exit(main())
