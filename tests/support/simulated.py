"""What tests of the simulator share."""

from __future__ import annotations

from tools import sim_run
from tools.sim_machine import presets, probed
from umaserve.policy.base import ALL_FEATURES, FEATURES, Knobs

MACHINES = presets()


def knobs(machine, *, cap=1.2, without=(), n_batch=2048, max_merge=0):
    features = ALL_FEATURES - sum(FEATURES[name] for name in without)
    return Knobs(
        n_batch, max_merge, 50.0, cap, machine.abortable, machine.aside_per_s > 0, features,
        machine.wide_reads, sliced=machine.sliced,
    )  # fmt: skip


def quiet(name):
    """A machine whose ticks take what they take."""
    return MACHINES[name]._replace(noise=0.0, outliers=0.0)


def play(load, machine, told=None, **size):
    return sim_run.simulate(load, machine, told or knobs(machine), probed(machine), **size)


def gaps_ms(result, lane):
    out = result.outcome
    gaps = out.token_gap[: result.tokens][result.jobs.lane[out.token_job[: result.tokens]] == lane]
    return gaps[gaps >= 0.0]
