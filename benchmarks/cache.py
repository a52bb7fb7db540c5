"""What a cache of prompts is worth: loads that repeat themselves, beside llama-server with its own.

    python -m benchmarks.cache
    python -m benchmarks.cache --model demo --agents 2 --words 60 --turns 2 --rounds 1
    python -m benchmarks.cache --model qwen3-30b-a3b --agents 8 --words 2000 --turns 4 --rounds 3

Traces: agents with one system prompt, a chat of ten turns, completion at a cursor that moves, and
a long chat that is replaced by its summary (`benchmarks.cache_traces`).  Both servers get prompts
of the same lengths in each round, of words that no round before had; answers go into the next
prompt.  llama-server has its cache of prompts in memory (``--cache-ram`` as it is by default), a
slot for each agent and a context as large as ours.  Figures: time from the first request to the
last token, requests a second, and for each step of a trace the first token, the cached share of the
prompts, and how many tokens were computed beyond the new ones.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from typing import Any

import trio

from benchmarks import cache_tables, machine
from benchmarks.cache_traces import (
    TRACES,
    Answer,
    Asker,
    Sizes,
    Target,
    Words,
    new_tokens,
    over_http,
    over_socket,
)
from benchmarks.report import around, table
from benchmarks.setting import Series, Setting, pair, parser, setting
from benchmarks.sides import Ours, ServerSetting, Side, Theirs, ours, quiet_death, settle
from benchmarks.turns import say

WARM_UP = Sizes(
    2, 40, 1, chat_turns=2, file_tokens=100, moves=2, move=4, long_turns=1, summary=8, turns_after=1
)
HTTP_FLAGS = " --http 127.0.0.1:0"


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "cache")
    out.add_argument("--agents", type=int, default=4)
    out.add_argument("--words", type=int, default=300, help="of each system prompt")
    out.add_argument("--turns", type=int, default=3, help="of each agent")
    out.add_argument("--traces", default=",".join(TRACES), help="which, with commas between them")
    out.add_argument("--no-peer", action="store_true", help="ours alone")
    out.add_argument("--http", action="store_true", help="ours over HTTP too, not over its socket")
    out.add_argument("--name", default="", help="of the result file; by label if not given")
    return out


def target(side: Side, http: bool, bias: list[list[float]]) -> Target:
    """How a side is asked; ``http``: ours over HTTP."""
    if isinstance(side, Theirs):
        return over_http(side.port, side.marks, bias)
    if http:
        return over_http(side.daemon.http_port(), Theirs.marks, bias)
    return over_socket(side, bias)


def note(series: Series, side: str, answers: list[Answer]) -> None:
    """Figures of one trace that one side has played."""
    took_s = max(a.end_s for a in answers) - min(a.sent_s for a in answers)
    series.add(side, makespan_s=took_s, requests_per_s=len(answers) / took_s)
    for step in dict.fromkeys(a.step for a in answers):
        here = [a for a in answers if a.step == step]
        new = [new_tokens(a, answers) for a in here]
        series.add(
            side,
            **{
                f"first_ms@{step}": statistics.median(1e3 * (a.first_s - a.sent_s) for a in here),
                f"prompt@{step}": statistics.fmean(len(a.prompt) for a in here),
                f"computed@{step}": statistics.fmean(a.computed for a in here),
                f"cached@{step}": sum(a.cached for a in here) / sum(len(a.prompt) for a in here),
                f"beyond@{step}": max(a.computed - n for a, n in zip(here, new, strict=True)),
            },
        )


def measure(
    found: Setting, sides: list[Side], options: argparse.Namespace, sizes: Sizes
) -> dict[str, Any]:
    """Rounds of the sides in turns, after a short one that warms them up; the first is ours."""
    assert isinstance(sides[0], Ours)
    words = Words(sides[0].daemon.path, found.options.seed)
    bias = words.answers()
    ways = {side.name: target(side, options.http, bias) for side in sides}
    traces: dict[str, Any] = {}
    for name in options.traces.split(","):
        series = Series.empty()
        for run in range(-1, found.rounds):
            say(f"{name}: {'warm-up' if run < 0 else f'round {run + 1} of {found.rounds}'}")
            play = TRACES[name](words, WARM_UP if run < 0 else sizes)
            for side in sides if run % 2 == 0 else sides[::-1]:
                trio.run(settle, side)
                asker = Asker(ways[side.name])
                trio.run(play, asker)
                if run >= 0:
                    note(series, side.name, asker.answers)
        timed = [key for key in series.values if key == "makespan_s" or key.startswith("first_ms@")]
        traces[name] = {
            "figures": series.spreads(),
            "ours_over_theirs": {key: series.ours_over_theirs(key) for key in timed},
        }
    return {
        **found.describe(), "http": options.http, "sizes": sizes._asdict(), "traces": traces
    }  # fmt: skip


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    if options.http:
        options.flags += HTTP_FLAGS
    found = setting(options)
    sizes = Sizes(options.agents, options.words, options.turns)
    with contextlib.ExitStack() as stack:
        if options.no_peer:
            equal = ServerSetting(options.agents, found.n_ctx, found.threads)
            flags = options.flags.split()
            sides: list[Side] = [stack.enter_context(ours(found.model, equal, *flags))]
        else:
            sides = stack.enter_context(pair(found, options.agents, cached=True)).in_turns(0)
        result = measure(found, sides, options, sizes)
    print(table(*cache_tables.whole(result, around)))
    print("written to", machine.save(options.name or f"cache-{found.label}", result).name)


if __name__ == "__main__":
    sys.exit(main())
