"""What tests of the simulator share."""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tools import sim_run
from tools.sim_beside import ASIDE_TOKENS, CHANGES, END_MS
from tools.sim_loads import INTERACTIVE, Load, beside
from tools.sim_machine import Machine, presets, probed
from tools.sim_run import Result

MACHINES = presets()


def quiet(name):
    """A machine whose ticks take what they take."""
    return MACHINES[name]._replace(noise=0.0, outliers=0.0)


@cache
def compile_simulator():
    """Run the simulator for a token: several workers wait here for the first, which compiles it."""
    load, machine = Load(), MACHINES["gpu-dense"]
    load.add(INTERACTIVE, 1, 1)
    with Path(os.environ["NUMBA_CACHE_DIR"], "simulator.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sim_run.simulate(load, machine, machine.knobs(), probed(machine))


def play(load, machine, told=None, **size):
    compile_simulator()
    return sim_run.simulate(load, machine, told or machine.knobs(), probed(machine), **size)


def gaps_ms(result, lane):
    out = result.outcome
    gaps = out.token_gap[: result.tokens][result.jobs.lane[out.token_job[: result.tokens]] == lane]
    return gaps[gaps >= 0.0]


class Beside(NamedTuple):
    """Figures of `sim_loads.beside`: its first requests are streams, then background decoders."""

    result: Result

    @classmethod
    def of(
        cls, machine: Machine, cap: float, *, streams: int = 1, decoders: int = 0, prompts: int = 0,
        ticks: int = 4000, warm: int = 700,
    ) -> Beside:  # fmt: skip
        """After ``warm`` ticks in which the policy learns the machine."""
        load, cost = beside(streams, decoders, prompts), probed(machine)
        for most_ticks in (warm, ticks):
            result = sim_run.simulate(
                load, machine, machine.knobs(cap=cap), cost, n_slots=16, n_ctx=1 << 20,
                most_ticks=most_ticks,
            )  # fmt: skip
        return cls(result)

    @property
    def _seconds(self) -> float:
        return float(self.result.outcome.totals[END_MS]) / 1000.0

    def p95(self, job: int = 0) -> float:
        """ms between tokens of a request."""
        out, tokens = self.result.outcome, self.result.tokens
        gaps = out.token_gap[:tokens][out.token_job[:tokens] == job]
        return float(np.percentile(gaps[gaps >= 0.0], 95))

    def rate(self, *jobs: int) -> float:
        """Tokens per second of so many requests."""
        made = np.isin(self.result.outcome.token_job[: self.result.tokens], jobs)
        return int(made.sum()) / self._seconds

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second that were computed beside the ticks."""
        return float(self.result.outcome.totals[ASIDE_TOKENS]) / self._seconds

    @property
    def changes(self) -> int:
        """Ticks with other rows than the one before."""
        return int(self.result.outcome.totals[CHANGES])
