"""Sessions that need twice the KV cells there are, beside the same sessions in batches that fit.

    python -m benchmarks.working_set
    python -m benchmarks.working_set --model demo --sessions 8 --prompt 60 --answer 60 --rounds 1

Each session has some turns; a turn's prompt is all that was said before and new tokens.  What all
sessions hold in the end is twice the KV cells of the daemon.  *At once*: all sessions are asked
together.  *In batches*: half of them, and the other half when those have finished.  The same daemon
is asked both ways in turns.  Figures: generated tokens per second, how often a session was parked,
and the longest time between two tokens of an answer.  A request that fails ends the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import trio

from benchmarks import cache_tables, machine
from benchmarks.cache_traces import Answer, Asker, Ids, Words, over_socket, talk, turn
from benchmarks.machine import ratio, spread
from benchmarks.report import around, table
from benchmarks.setting import Setting, parser, setting
from benchmarks.sides import Ours, ServerSetting, ours, quiet_death, settle
from benchmarks.turns import say

AT_ONCE, IN_BATCHES = "at once", "in batches"
TIMES = 2  # what all sessions hold in the end, over the cells
STEP = 256  # cells of a context are a multiple of it
WARM_UP_TOKENS = 16


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "working_set")
    out.add_argument("--sessions", type=int, default=16)
    out.add_argument("--turns", type=int, default=2, help="of each session")
    out.add_argument("--prompt", type=int, default=128, help="new tokens of a turn's prompt")
    out.add_argument("--answer", type=int, default=128, help="tokens of a turn's answer")
    out.add_argument("--name", default="", help="of the result file; by label if not given")
    return out


def cells(sessions: int, turns: int, tokens: int) -> int:
    """KV cells that hold one part in `TIMES` of what all sessions need in the end."""
    return -(-sessions * turns * tokens // (TIMES * STEP)) * STEP


def texts(words: Words, sessions: int, turns: int, n: int) -> list[list[Ids]]:
    """What each session says in its turns: ``n`` tokens each, and no two alike."""
    return [[words.ids(n)[:n] for _ in range(turns)] for _ in range(sessions)]


async def play(asker: Asker, batches: Sequence[Sequence[list[Ids]]], answer: int) -> None:
    """Ask all sessions of a batch together, batch after batch."""
    for batch in batches:
        async with trio.open_nursery() as nursery:
            for said in batch:
                nursery.start_soon(talk, asker, [], said, answer, turn)


def figures(answers: list[Answer], preempted: int) -> dict[str, float]:
    took_s = max(a.end_s for a in answers) - min(a.sent_s for a in answers)
    return {
        "tokens_per_s": sum(len(a.ids) for a in answers) / took_s,
        "parked": float(preempted),
        "cached": sum(a.cached for a in answers) / sum(len(a.prompt) for a in answers),
    }


def measure(found: Setting, side: Ours, options: argparse.Namespace) -> dict[str, Any]:
    """Both ways in turns, after a short run that warms up."""
    words = Words(side.daemon.path, options.seed)
    target = over_socket(side, words.answers())
    half = options.sessions // 2
    values: dict[str, dict[str, list[float]]] = {AT_ONCE: {}, IN_BATCHES: {}}
    for run in range(-1, found.rounds):
        say(f"working set: {'warm-up' if run < 0 else f'round {run + 1} of {found.rounds}'}")
        for way in (AT_ONCE, IN_BATCHES) if run % 2 == 0 else (IN_BATCHES, AT_ONCE):
            n = WARM_UP_TOKENS if run < 0 else options.prompt
            said = texts(words, options.sessions, options.turns, n)
            trio.run(settle, side)
            asker, before = Asker(target), side.daemon.metrics()["preemptions_total"]
            batches = [said] if way == AT_ONCE else [said[:half], said[half:]]
            trio.run(play, asker, batches, WARM_UP_TOKENS if run < 0 else options.answer)
            parked = side.daemon.metrics()["preemptions_total"] - before
            if run >= 0:
                for name, value in figures(asker.answers, parked).items():
                    values[way].setdefault(name, []).append(value)
    rates = [values[way]["tokens_per_s"] for way in (AT_ONCE, IN_BATCHES)]
    sizes = ("sessions", "turns", "prompt", "answer")
    return {
        **found.describe(),
        **{name: getattr(options, name) for name in sizes},
        "ways": {
            way: {name: spread(found) for name, found in each.items()}
            for way, each in values.items()
        },
        "at_once_over_in_batches": ratio(*rates),
    }


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    options.n_ctx = cells(options.sessions, options.turns, options.prompt + options.answer)
    found = setting(options)
    with ours(
        found.model, ServerSetting(options.sessions, found.n_ctx, found.threads),
        *options.flags.split(),
    ) as side:  # fmt: skip
        result = measure(found, side, options)
    name = options.name or f"working_set-{found.label}"
    print(table(*cache_tables.working_whole(result, around)))
    print("written to", machine.save(name, result).name)


if __name__ == "__main__":
    sys.exit(main())
