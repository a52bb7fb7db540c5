"""Prefill storm: one interactive stream, and clients that send unique long prompts all the time.

    python -m benchmarks.storm
    python -m benchmarks.storm --model demo --storm-priority interactive --prompt-words 600

A stream runs alone; then beside 2 and 8 clients, each of which sends a prompt that no cache knows,
takes one token and sends the next; then the stream ends and the storm goes on.  Figures: the
stream's 95th percentile of the time between tokens and its longest pause, over those of the same
stream alone, and prompt tokens per second, while it runs and afterwards.  What the latency cap
leaves free is computed from what ticks cost (``benchmarks/free_rate.py``), measured before.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from typing import Any

import trio

from benchmarks import tick_costs
from benchmarks.free_rate import best_mix
from benchmarks.load import Crowd, window
from benchmarks.names import OURS, THEIRS
from benchmarks.setting import Pair, Recorder, Series, Setting, pair, parser, setting, show
from benchmarks.sides import Side, quiet_death, settle
from benchmarks.timeline import (
    Phase,
    completion_groups,
    completion_rate,
    gaps_ms,
    percentile,
    token_rate,
)
from benchmarks.turns import say
from umaserve.system.processor import logical_cores

# alone as long as beside the storm: a stream's ticks grow with its context
ALONE_S, STORM_S, AFTER_S, WARM_S = 10.0, 10.0, 6.0, 1.0
STREAM_WORDS = 16


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "storm")
    out.add_argument("--prompt-words", type=int, default=300)
    out.add_argument("--clients", default="2,8")
    out.add_argument(
        "--storm-priority", choices=("background", "interactive"), default="background"
    )
    out.add_argument("--cap", type=float, default=1.2, help="the daemon's latency cap")
    out.add_argument("--no-costs", action="store_true", help="do not measure ticks before")
    return out


async def one_side(
    side: Side, found: Setting, options: argparse.Namespace, run: int, series: Series,
    keep: Recorder,
) -> None:  # fmt: skip
    """All stretches of one round on one side; ``run`` -1 is a warm-up that leaves no figures.

    Long: the stretches of a round, in the order in which they run.
    """
    words = found.words(options.prompt_words)
    storm_interactive = options.storm_priority == "interactive"
    counts = [int(n) for n in options.clients.split(",")]
    shorter = 0.5 if run < 0 else 1.0
    await settle(side)

    crowd = Crowd(side, found.documents)
    async with trio.open_nursery() as nursery:
        await nursery.start(crowd.keep_asking, "stream", STREAM_WORDS, found.stream_tokens, True)
        await trio.sleep(found.seconds(WARM_S))
        alone = await window(crowd, "alone", found.seconds(ALONE_S * shorter))
        nursery.cancel_scope.cancel()
    await settle(side)
    quiet = gaps_ms(alone)
    p95, longest = percentile(quiet, 95), max(quiet, default=float("nan"))
    if run >= 0:
        keep.keep(alone, side.name, run)
        series.add(side.name, alone_p95_ms=p95, alone_longest_ms=longest,
                   alone_p50_ms=percentile(quiet, 50))  # fmt: skip

    for n in counts if run >= 0 else counts[:1]:
        crowd = Crowd(side, found.documents)
        async with trio.open_nursery() as nursery:
            stream = trio.CancelScope()

            async def the_stream(
                task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
                crowd: Crowd = crowd,
                stream: trio.CancelScope = stream,
            ) -> None:
                with stream:
                    await crowd.keep_asking(
                        "stream", STREAM_WORDS, found.stream_tokens, True, task_status
                    )

            await nursery.start(the_stream)
            await trio.sleep(found.seconds(WARM_S))
            for i in range(n):
                nursery.start_soon(crowd.keep_asking, f"storm{i}", words, 1, storm_interactive)
            storm, rate = await watch(side, crowd, f"storm{n}", found.seconds(STORM_S * shorter))
            stream.cancel()
            after_rate = await after(side, crowd, found.seconds(AFTER_S * shorter))
            nursery.cancel_scope.cancel()
        await settle(side)
        if run < 0:
            continue
        only_stream = Phase(
            storm.name, storm.begin_s, storm.end_s,
            [s for s in storm.sessions if s.session_id.startswith("stream")],
        )  # fmt: skip
        gaps = gaps_ms(only_stream)
        keep.keep(storm, side.name, run)
        series.add(
            side.name,
            **{
                f"p95_ms@{n}": percentile(gaps, 95),
                f"p95_ratio@{n}": percentile(gaps, 95) / p95,
                f"longest_ms@{n}": max(gaps, default=float("nan")),
                f"longest_ratio@{n}": max(gaps, default=float("nan")) / longest,
                f"stream_tokens_per_s@{n}": token_rate(only_stream),
                f"prompt_rate@{n}": rate,
                f"after_rate@{n}": after_rate,
            },
        )


async def watch(side: Side, crowd: Crowd, name: str, seconds: float) -> tuple[Phase, float | None]:
    """A stretch, and the prompt tokens per second that were computed in it.

    By the server's own count where it has one that is fine enough; else by the prompts answered,
    a lower bound of half a prompt's precision where few were.
    """
    before, began = await side.prompt_tokens(), time.perf_counter()
    phase = await window(crowd, name, seconds)
    now, ended = await side.prompt_tokens(), time.perf_counter()
    if before is not None and now is not None:
        return phase, (now - before) / (ended - began)
    answered = completion_groups(phase.sessions, phase.begin_s, phase.end_s, 0.01 * seconds)
    rate = completion_rate(answered)
    if rate is None:
        rate = sum(n for _, n in answered) / seconds
    return phase, rate


async def after(side: Side, crowd: Crowd, seconds: float) -> float | None:
    """Prompt tokens per second of the storm alone.

    By the server's own count from its first change to its last: a tick counts when it has ended,
    and one may take a second.  A server without one, which answers a few prompts at a time, is
    watched until three such groups are out.  Either takes at most four times as long.
    """
    began = time.perf_counter()
    count = await side.prompt_tokens()
    changes: list[tuple[float, int]] = []
    while True:
        await trio.sleep(0.1)
        now = time.perf_counter()
        if count is not None:
            latest = await side.prompt_tokens()
            if latest is not None and latest != count:
                count = latest
                changes.append((now, latest))
            if now - began < seconds or len(changes) < 4 and now - began < 4 * seconds:
                continue
            if len(changes) < 2:
                return 0.0
            (first_s, first), (last_s, last) = changes[0], changes[-1]
            return (last - first) / (last_s - first_s)
        if now - began < seconds:
            continue
        groups = completion_groups(crowd.sessions, began, now, 0.01 * seconds)
        if len(groups) >= 3 or now - began > 4 * seconds:
            return completion_rate(groups)


def measure(bench: Pair, options: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
    """Rounds of both sides in turns, after one shorter that warms them up."""
    found, series = bench.setting, Series.empty()
    for run in range(-1, found.rounds):
        say(f"storm: {'warm-up' if run < 0 else f'round {run + 1} of {found.rounds}'}")
        for side in bench.in_turns(run):
            trio.run(functools.partial(one_side, side, found, options, run, series, keep))
    counts = [int(n) for n in options.clients.split(",")]
    result: dict[str, Any] = {
        **found.describe(),
        "benchmark": "storm",
        "clients": counts,
        "prompt_words": found.words(options.prompt_words),
        "prompt_tokens": round(found.words(options.prompt_words) * found.tokens_per_word),
        "storm_priority": options.storm_priority,
        "cap": options.cap,
        "figures": series.spreads(),
        "after_ours_over_theirs": {
            str(n): series.ours_over_theirs(f"after_rate@{n}") for n in counts
        },
    }
    return result


def add_free(result: dict[str, Any], costs: tick_costs.Costs | None) -> None:
    """What the cap leaves free by the measured costs, and how much of it was used."""
    if costs is None:
        return
    mix = best_mix(costs, result["cap"])
    result["costs"] = tick_costs.to_json(costs)
    result["free_prompt_rate"] = mix.prompt_tokens_per_s
    result["free_mix"] = {
        "usual": mix.usual._asdict(),
        "slow": mix.slow._asdict() if mix.slow else None,
        "slow_share": mix.slow_share,
    }
    result["used_of_free"] = {
        str(n): result["figures"][f"prompt_rate@{n}"][OURS]["median"] / mix.prompt_tokens_per_s
        for n in result["clients"]
        if mix.prompt_tokens_per_s and OURS in result["figures"].get(f"prompt_rate@{n}", {})
    }


def measure_costs(found: Setting, options: argparse.Namespace) -> tick_costs.Costs | None:
    """Ticks of the bare library, with as many threads as the cores (or ``--threads``)."""
    if options.no_costs:
        return None
    say("storm: what ticks cost")
    return tick_costs.run(found.model, found.threads or logical_cores(), found.seconds(6.0))


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    costs = measure_costs(found, options)
    keep = Recorder(found, found.rounds - 1)
    parallel = max(int(n) for n in options.clients.split(",")) + 1
    with pair(found, parallel) as bench:
        result = measure(bench, options, keep)
    add_free(result, costs)
    show_storm(result)
    print("written to", keep.save(result, not options.no_plot).name)


def show_storm(result: dict[str, Any]) -> None:
    show(result)
    if "free_prompt_rate" in result:
        mix, used = json.dumps(result["free_mix"]), json.dumps(result["used_of_free"])
        print("free for prompts", round(result["free_prompt_rate"], 1), mix, "used", used)
    print("after: ours over", THEIRS, json.dumps(result["after_ours_over_theirs"]))


if __name__ == "__main__":
    sys.exit(main())
