"""Plans for prompts beside the ticks of an accelerator."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.support.policy_states import NOW, TRAFFIC, N, empty, known, put, told
from umaserve.policy.base import (
    ALL_FEATURES,
    FLOW,
    KIND_DECODE,
    SINCE_BESIDE,
    SINCE_DECODE,
    Memory,
    Plan,
    Tick,
)
from umaserve.policy.cost.model import CostModel
from umaserve.policy.guarded import plan_tick
from umaserve.policy.latency_guard import (
    MARGIN,
)

NEARLY = 1.0 + 1e-9


def cost_of(name="gpu-dense", parts=()):
    """The costs of a machine, and ms of the longest part of chunks; 0.0 = not known."""
    cost = CostModel.unknown()
    if name:
        cost.copy_from(known(name))
    cost.longest[: len(parts)] = parts
    return cost


def knobs_of(name="gpu-dense", **changes):
    """Chunks that go on through ticks have a file of their own."""
    usual = {"can_aside": True, "paced": True, "features": ALL_FEATURES - FLOW}
    return told(name, **{**usual, **changes})


def fresh(ago_ms=0.0):
    """A memory in which all background was served ``ago_ms`` ago."""
    memory = Memory.fresh(N)
    memory.since_ns[:] = NOW - int(ago_ms * 1e6)
    return memory


def waited(beside_ms, decode_ms=0.0):
    """A memory in which prompts beside the ticks, and decoders behind them, waited so long."""
    memory = fresh()
    memory.since_ns[SINCE_BESIDE] -= int(beside_ms * 1e6)
    memory.since_ns[SINCE_DECODE] -= int(decode_ms * 1e6)
    return memory


class Planned:
    """One plan, and what it says of prompts beside the tick."""

    def __init__(self, state, knobs, cost, *, number=1, now=NOW, memory=None, free=10_000):
        self.plan, self.memory = Plan.empty(N), memory or fresh()
        tick = Tick(number, now, free, 500, np.inf)
        self.entries = plan_tick(state, tick, knobs, cost, self.memory, TRAFFIC, self.plan)
        self.slots = self.plan.slots[: self.entries].tolist()
        self.listed = self.plan.aside[: self.plan.aside.tolist().index(-1)].tolist()
        self.info = self.plan.info
        self.chunk = int(self.info.chunk_beside)
        self.slice_ms = float(self.info.slice_ms)
        self.flags = int(self.info.marks)

    @property
    def base_ms(self):
        """The time between tokens of the streams alone."""
        return float(self.memory.round_ms[0, self.memory.found[KIND_DECODE]])


# around what may be spent, and in debt
CREDITS = st.one_of(st.floats(0.9, 2.5), st.floats(-1, 2.5))


CAPS = st.sampled_from([0.0, 1.05, 1.5, 3.0])


def streaming(streams, ago_ms=0.0):
    """Interactive sessions that decode: (credit, cap) each."""
    state = empty()
    for s, (credit, cap) in enumerate(streams):
        put(state, s, 0, 100, 99, credit=credit, cap=cap, ago_ms=ago_ms)
    return state


def gap_of(streams, latency_cap):
    """Baselines that may lie between two tokens of all of them, as planned for."""
    return 1.0 + (min([own or latency_cap for _, own in streams]) - 1.0) * MARGIN
