"""Run the scheduling policy against a simulated machine and workload.

    python -m tools.simulate --machine cpu-2core-0.5b --load storm --without error-budget

Prints a table of figures per lane, beside those of the interactive requests alone.
"""

from __future__ import annotations

import argparse
import sys
import time

from umaserve.jit.cache import use_jit_cache

if __name__ == "__main__":
    use_jit_cache()  # else code that was compiled from other sources would run

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from umaserve.policy.base import FEATURES, Knobs  # noqa: E402

from . import sim_beside, sim_run  # noqa: E402
from .sim_beside import NS  # noqa: E402
from .sim_loads import BACKGROUND, INTERACTIVE, PRESETS, Load  # noqa: E402
from .sim_machine import Machine, presets, probed  # noqa: E402
from .sim_run import Result, simulate  # noqa: E402

LANES = ("interactive", "background")


def knobs_for(machine: Machine, args: argparse.Namespace) -> Knobs:
    return machine.knobs(
        cap=args.latency_cap, without=args.without, n_batch=args.n_batch,
        max_merge=args.max_merge, budget_ms=args.tick_budget_ms, reading_ms=args.reading_ms,
    )  # fmt: skip


def lane_figures(result: Result, lane: int, cap: float, base: dict[str, float]) -> dict[str, float]:
    """Figures of one lane; gaps and first tokens over ``base``'s where that is given."""
    jobs, out = result.jobs, result.outcome
    mine = jobs.lane == lane
    made = mine[out.token_job[: result.tokens]]
    gaps = out.token_gap[: result.tokens][made]
    gaps = gaps[gaps >= 0.0]
    times = out.token_ns[: result.tokens][made]
    figures: dict[str, float] = {"requests": int(mine.sum()), "tokens": int(made.sum())}
    figures["ended"] = int((jobs.end[mine] > 0).sum())
    if times.size:
        span = (times[-1] - sim_run.START_NS) / 1e9
        figures["tokens/s"] = times.size / span
    for name, share in (("p50", 50), ("p95", 95), ("p99", 99), ("worst", 100)):
        if gaps.size:
            figures[f"{name} ms"] = float(np.percentile(gaps, share))
    started = mine & (jobs.first > 0)
    if started.any():
        first = (jobs.first[started] - jobs.due[started]) / NS
        figures["ttft p50 ms"] = float(np.percentile(first, 50))
        figures["ttft p95 ms"] = float(np.percentile(first, 95))
    if base and gaps.size and "p95 ms" in base:
        # the promise is about the 95th percentile alone
        figures["slow %"] = 100.0 * float((gaps > cap * base["p95 ms"]).mean())
        for name in ("p50", "p95", "p99", "worst"):
            figures[f"{name} x"] = figures[f"{name} ms"] / base[f"{name} ms"]
        figures["ttft p50 x"] = figures["ttft p50 ms"] / base["ttft p50 ms"]
    if mine.any():
        figures["longest wait ms"] = float(out.longest_idle[lane])
    return figures


def figures(
    load: Load, machine: Machine, knobs: Knobs, *, cold: bool = False, seconds: float = 1e6,
    random_seed: int = 1, **size: int,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Figures of a load by lane, ``alone`` (interactive requests without the rest) and ``all``."""
    from umaserve.policy.cost.model import CostModel

    def start() -> CostModel:
        return CostModel.unknown() if cold else probed(machine, size.get("n_seq", 32))

    answer: dict[str, dict[str, float]] = {}
    base: dict[str, float] = {}
    if INTERACTIVE in load.lane:
        alone = simulate(
            load.only(INTERACTIVE), machine, knobs, start(), seconds=seconds,
            random_seed=random_seed, **size,
        )
        base = lane_figures(alone, INTERACTIVE, knobs.latency_cap, {})
        if BACKGROUND in load.lane:
            answer["alone"] = base
        else:
            base = {}
    began = time.perf_counter()
    result = simulate(
        load, machine, knobs, start(), seconds=seconds, random_seed=random_seed, **size
    )
    took = time.perf_counter() - began
    for lane, name in enumerate(LANES):
        if lane in load.lane:
            answer[name] = lane_figures(
                result, lane, knobs.latency_cap, base if lane == INTERACTIVE else {}
            )
    totals, faults = result.outcome.totals, result.outcome.faults
    both = {
        "ticks": totals[sim_beside.TICKS],
        "simulated s": totals[sim_beside.END_MS] / 1000.0,
        "ticks/s of simulator": totals[sim_beside.TICKS] / took,
        "cost error %": 100.0 * float(result.cost.error[0]),
        "ticks on error budget": totals[sim_beside.SPENT_TICKS],
        "parked": totals[sim_beside.PARKED],
        "aborted": totals[sim_beside.ABORTED],
        "prompt tokens aside": totals[sim_beside.ASIDE_TOKENS],
    }
    if totals[sim_beside.STREAM_MS] > 0:
        seconds_streaming = totals[sim_beside.STREAM_MS] / 1000.0
        aside = totals[sim_beside.ASIDE_TOKENS]
        both["background prompt tokens/s beside streams"] = (
            totals[sim_beside.STREAM_PROMPT] + aside
        ) / seconds_streaming
        both["background tokens/s beside streams"] = (
            totals[sim_beside.STREAM_ROWS] / seconds_streaming
        )
    for name, count in zip(sim_run.FAULTS, faults, strict=True):
        if count:
            both[f"FAULT {name}"] = count
    answer["all"] = {name: float(value) for name, value in both.items()}
    return answer


def show(title: str, answer: dict[str, dict[str, float]], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    names = [name for name in ("alone", *LANES) if name in answer]
    for name in names:
        table.add_column(name, justify="right")
    rows = dict.fromkeys(figure for name in names for figure in answer[name])
    for figure in rows:
        values = [answer[name].get(figure) for name in names]
        cells = ["" if v is None else f"{v:,.2f}".removesuffix(".00") for v in values]
        table.add_row(figure, *cells)
    console.print(table)
    for name, value in answer["all"].items():
        console.print(f"  {name}: {value:,.2f}".removesuffix(".00"))


def parser() -> argparse.ArgumentParser:
    machines = sorted(presets())
    made = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__)
    made.add_argument("--machine", choices=machines, default="cpu-2core-0.5b")
    made.add_argument("--load", choices=[*PRESETS, "all"], default="storm")
    made.add_argument("--without", action="append", choices=list(FEATURES), default=[],
                      help="leave a part of the policy out; may be repeated")  # fmt: skip
    made.add_argument("--latency-cap", type=float, default=1.2)
    made.add_argument("--reading-ms", type=float, default=25.0)
    made.add_argument("--tick-budget-ms", type=float, default=50.0)
    made.add_argument("--max-merge", type=int, default=0)
    made.add_argument("--n-batch", type=int, default=2048)
    made.add_argument("--n-ctx", type=int, default=16384, help="KV cells")
    made.add_argument("--n-seq", type=int, default=32, help="requests that run at a time")
    made.add_argument("--seconds", type=float, default=60.0, help="simulated time at most")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--noise", type=float, help="standard deviation of a tick over its mean")
    made.add_argument("--outliers", type=float, help="share of ticks that take much longer")
    made.add_argument("--cold", action="store_true", help="the policy starts without a probe")
    made.add_argument("--no-aside", action="store_true", help="no prompts beside the ticks")
    return made


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    machine = presets()[args.machine]
    if args.noise is not None:
        machine = machine._replace(noise=args.noise)
    if args.outliers is not None:
        machine = machine._replace(outliers=args.outliers)
    if args.no_aside:
        machine = machine._replace(aside_per_s=0.0, chunk_ms=np.zeros_like(machine.chunk_ms))
    console = Console(width=100)
    for name in PRESETS if args.load == "all" else [args.load]:
        answer = figures(
            PRESETS[name](), machine, knobs_for(machine, args), cold=args.cold,
            seconds=args.seconds, random_seed=args.seed, n_ctx=args.n_ctx, n_seq=args.n_seq,
        )  # fmt: skip
        show(f"{name} on {args.machine}, cap {args.latency_cap:g}", answer, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
