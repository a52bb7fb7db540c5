"""The simulator's prediction beside a real run of the same load.

    python -m benchmarks.simulated
    python -m benchmarks.simulated --model demo --loads storm,paste --seconds 6

First a daemon learns what ticks cost here: its own probe, then a calibration that is none of the
loads (a stream alone, eight streams, a stream beside one long prompt).  From the cost model that it
saves (with what parts of chunks take, where prompts get slices), and the rate of prompts computed
beside the ticks, a simulated machine is made (``tools/sim_machine.py``).  Then each load of
``tools/sim_loads.py`` is played to a real daemon by real clients and to the simulator, for the same
stretch of time from the first request on.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trio

from benchmarks.load import Crowd, ask, window
from benchmarks.machine import ratio, spread
from benchmarks.setting import Recorder, Setting, parser, setting
from benchmarks.sides import Ours, ServerSetting, ours, quiet_death, settle
from benchmarks.timeline import Phase, first_tokens_ms, gaps_ms, percentile, token_rate
from benchmarks.turns import say
from tools.sim_loads import BACKGROUND, INTERACTIVE, PRESETS, Load
from tools.sim_machine import Machine, learned
from tools.sim_run import START_NS, Result, simulate
from umaserve.llama.builds import cache_root
from umaserve.policy.base import ALL_FEATURES, Knobs
from umaserve.policy.cost.model import CostModel

PARALLEL = 32  # as many as the simulator's sequences
LOADS = "storm,mixed,agent,background,paste"
LANES = {"interactive": INTERACTIVE, "background": BACKGROUND}
CALIBRATION_S, LONG_WORDS = 8.0, 1500


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "simulated")
    out.add_argument("--loads", default=LOADS, help=f"of {', '.join(PRESETS)}")
    out.add_argument("--seconds", type=float, default=15.0, help="of each load that are watched")
    return out


# --- the real machine


def cost_files() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (cache_root() / "costs").glob("*.npz")}


async def calibrate(side: Ours, found: Setting) -> float:
    """Let the daemon see ticks of some shapes; prompt tokens per second beside the ticks."""
    seconds, crowd = found.seconds(CALIBRATION_S), Crowd(side, found.documents)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd.keep_asking, "alone", 16, 64, True)
        await trio.sleep(seconds / 2)
        nursery.start_soon(crowd.keep_asking, "long", found.words(LONG_WORDS), 1, False)
        await trio.sleep(seconds / 4)
        before = (await metrics(side))["aside_prompt_tokens_total"]
        await trio.sleep(seconds)
        rate = ((await metrics(side))["aside_prompt_tokens_total"] - before) / seconds
        nursery.cancel_scope.cancel()
    await settle(side)
    async with trio.open_nursery() as nursery:
        for i in range(8):
            nursery.start_soon(crowd.keep_asking, f"stream{i}", 16, 64, False)
        await trio.sleep(seconds / 2)
        nursery.cancel_scope.cancel()
    await settle(side)
    return float(rate)


async def metrics(side: Ours) -> dict[str, Any]:
    from umaserve.client.async_trio import TrioClient

    async with TrioClient(side.daemon.path) as client:
        return await client.metrics()


async def play(side: Ours, load: Load, found: Setting, seconds: float) -> Phase:
    """The requests of a load, each when it is due, for so long."""
    crowd = Crowd(side, found.documents)
    ended = [trio.Event() for _ in range(load.size)]

    async def one(i: int) -> None:
        if load.parent[i] >= 0:
            await ended[load.parent[i]].wait()
        await trio.sleep(load.due_ms[i] / 1e3)
        session = crowd.new("job", load.lane[i] == INTERACTIVE)
        words = max(1, round(load.prompt[i] / found.tokens_per_word))
        await ask(side, session, found.documents.words(words), load.output[i])
        ended[i].set()

    await settle(side)
    async with trio.open_nursery() as nursery:
        for i in range(load.size):
            nursery.start_soon(one, i)
        phase = await window(crowd, "load", seconds)
        nursery.cancel_scope.cancel()
    return phase


def real_figures(phase: Phase, lane: int) -> dict[str, float]:
    front = lane == INTERACTIVE
    gaps, firsts = gaps_ms(phase, front), first_tokens_ms(phase, front)
    return {
        "p50_ms": percentile(gaps, 50),
        "p95_ms": percentile(gaps, 95),
        "tokens_per_s": token_rate(phase, front),
        "first_ms": percentile(firsts, 50),
        "answers": float(
            sum(s.end_s is not None for s in phase.sessions if s.interactive == front)
        ),
    }


# --- the simulated one


def simulated_figures(result: Result, lane: int, seconds: float) -> dict[str, float]:
    jobs, out = result.jobs, result.outcome
    mine = (jobs.lane == lane)[out.token_job[: result.tokens]]
    gaps = out.token_gap[: result.tokens][mine]
    began = (jobs.lane == lane) & (jobs.first > 0)
    end_ns = START_NS + seconds * 1e9
    return {
        "p50_ms": percentile(gaps[gaps >= 0.0], 50),
        "p95_ms": percentile(gaps[gaps >= 0.0], 95),
        "tokens_per_s": float(mine.sum()) / seconds,
        "first_ms": percentile((jobs.first[began] - jobs.due[began]) / 1e6, 50),
        "answers": float(((jobs.lane == lane) & (jobs.end > 0) & (jobs.end <= end_ns)).sum()),
    }


def compare(
    load: Load, phase: Phase, machine: Machine, knobs: Knobs, cost: CostModel, n_ctx: int,
    seconds: float,
) -> dict[str, dict[str, tuple[float, float]]]:  # fmt: skip
    """(real, simulated) of each figure, by lane."""
    mine = CostModel.unknown()
    mine.copy_from(cost)
    result = simulate(load, machine, knobs, mine, n_seq=PARALLEL, n_ctx=n_ctx, seconds=seconds)
    both: dict[str, dict[str, tuple[float, float]]] = {}
    for name, lane in LANES.items():
        if lane in load.lane:
            real = real_figures(phase, lane)
            played = simulated_figures(result, lane, seconds)
            both[name] = {
                figure: (real[figure], played[figure])
                for figure in real
                if np.isfinite([real[figure], played[figure]]).all() and real[figure] > 0.0
            }
    return both


def summary(rounds: Sequence[dict[str, dict[str, tuple[float, float]]]]) -> dict[str, Any]:
    """Medians and spreads over the rounds; ``ratio`` is simulated over real."""
    out: dict[str, Any] = {}
    for lane in rounds[0]:
        for figure in rounds[0][lane]:
            pairs = [r[lane][figure] for r in rounds if figure in r.get(lane, {})]
            out[f"{lane}.{figure}"] = {
                "real": spread([real for real, _ in pairs]),
                "simulated": spread([played for _, played in pairs]),
                "ratio": ratio([played for _, played in pairs], [real for real, _ in pairs]),
            }
    return out


def measure(options: argparse.Namespace, found: Setting) -> dict[str, Any]:
    sizes = ServerSetting(PARALLEL, found.n_ctx, found.threads)
    flags = options.flags.split()
    names = [name for name in options.loads.split(",") if name]
    seconds = found.seconds(options.seconds)
    before = cost_files()
    say("simulated: calibrating")
    with ours(found.model, sizes, *flags) as side:
        sample = found.documents.words(300)
        found.tokens_per_word = trio.run(side.count_tokens, sample) / 300
        aside_per_s = trio.run(calibrate, side, found)
    after = cost_files()
    changed = [path for path, at in after.items() if before.get(path) != at]
    if not changed:
        raise RuntimeError("the daemon saved no costs; is its cache directory writable?")
    with np.load(max(changed, key=lambda path: after[path]), allow_pickle=False) as stored:
        cost = CostModel.of(stored)
    machine = learned(cost, aside_per_s, not found.accelerator, found.accelerator)
    knobs = Knobs(
        2048, 0, 50.0, 1.2, 25.0, machine.abortable, machine.aside_per_s > 0.0, ALL_FEATURES,
        machine.wide_reads, sliced=machine.sliced,
    )  # fmt: skip
    rounds: dict[str, list[Any]] = {name: [] for name in names}
    with ours(found.model, sizes, *flags) as side:
        for run in range(found.rounds):
            for name in names:
                say(f"simulated: round {run + 1} of {found.rounds}, {name}")
                load = PRESETS[name]()
                phase = trio.run(functools.partial(play, side, load, found, seconds))
                rounds[name].append(
                    compare(load, phase, machine, knobs, cost, found.n_ctx, seconds)
                )
    return {
        **found.describe(),
        "benchmark": "simulated",
        "seconds": seconds,
        "aside_tokens_per_s": aside_per_s,
        "noise": machine.noise,
        "loads": {name: summary(found_rounds) for name, found_rounds in rounds.items()},
    }


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    unknown = [name for name in options.loads.split(",") if name and name not in PRESETS]
    if unknown:
        sys.exit(f"no such load: {', '.join(unknown)}; there are {', '.join(PRESETS)}")
    found = setting(options)
    with contextlib.suppress(KeyboardInterrupt):
        result = measure(options, found)
        print(f"{'load':11} {'figure':24} {'real':>9} {'simulated':>9} {'over real':>9}")
        for name, figures in result["loads"].items():
            for figure, values in figures.items():
                cells = [values[kind]["median"] for kind in ("real", "simulated", "ratio")]
                print(f"{name:11} {figure:24} " + " ".join(f"{cell:9.2f}" for cell in cells))
        print("written to", Recorder(found, 0).save(result, False).name)


if __name__ == "__main__":
    sys.exit(main())
