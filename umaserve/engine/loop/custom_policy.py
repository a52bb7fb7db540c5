"""Policies in plain Python, which plan between two ticks."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import numpy as np

from umaserve.engine.cells import accounting as cells
from umaserve.engine.model.loaded import CannotLoad, Setup
from umaserve.engine.ticks.records import Loop
from umaserve.policy import greedy
from umaserve.policy.base import Plan, SchedulerState, Tick, forget
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.states import NOT_FED


class CustomPolicy:
    """A policy in plain Python; ``is_on``: it plans instead of the compiled one.

    Raises CannotLoad.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._function = setup, find_policy(setup.start.policy)
        self.is_on, self._warned = self._function is not None, False

    def plan(self, loop: Loop, n_ticks: int) -> int:
        """Return the entries of its plan, or -1: a plan that cannot be computed is left to ours."""
        assert self._function is not None
        used = cells.cells_used(self._setup.table)
        free = loop.fixed.n_ctx - used
        forget(loop.plan.info)
        loop.plan.aside[0] = -1
        tick = Tick(n_ticks, time.monotonic_ns(), free, used, float("inf"))
        known = loop.state, tick, loop.knobs, loop.cost, loop.memory, loop.traffic
        entries, problem = -1, "made a plan that cannot be computed"
        try:
            entries = self._function(*known, loop.plan)
        except Exception as error:  # whatever somebody else's policy raises
            problem = f"raised {error!r}"
        if can_be_computed(loop.plan, entries, loop.state, loop.knobs.n_batch):
            return int(entries)
        if not self._warned:
            text = f"the policy {self._setup.start.policy} {problem}"
            text += "; guarded plans instead, now and then"
            self._setup.control.send(m.Log("warn", text))
        self._warned = True
        return -1


def find_policy(name: str) -> Callable[..., int] | None:
    """A policy in plain Python by name; None for the compiled one.  Raises CannotLoad."""
    if name == "guarded":
        return None
    if name == "greedy":
        return greedy.plan_tick
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise CannotLoad(f"the policy {name} cannot be imported: {error!r}") from error
    if not callable(found):
        raise CannotLoad(f"the policy {name} is no function")
    return found  # type: ignore[no-any-return]


def can_be_computed(plan: Plan, entries: int, state: SchedulerState, n_batch: int) -> bool:
    """Whether the first ``entries`` of a plan are tokens that running rows have left to compute,
    and fit one batch.  Prompts beside the ticks have to be running rows, with an end mark behind.
    """
    if not isinstance(entries, int | np.integer) or not 0 <= entries <= plan.slots.size:
        return False
    ends = np.flatnonzero(plan.aside < 0)
    if not ends.size or not np.isfinite(plan.info.tolist()).all():
        return False
    slots, counts = plan.slots[:entries], plan.counts[:entries]
    return (
        _are_running(slots, state)
        and _are_running(plan.aside[: ends[0]], state)
        and bool((counts > 0).all())
        and bool((counts <= state.n_tokens[slots] - state.n_past[slots]).all())
        and int(counts.sum(dtype=np.int64)) <= n_batch
    )


def _are_running(slots: np.ndarray, state: SchedulerState) -> bool:
    """Whether these are running rows, none of them twice."""
    known = bool(((slots >= 0) & (slots < state.state.size)).all())
    return (
        known
        and np.unique(slots).size == slots.size
        and bool((state.state[slots] == t.RUNNING).all())
        and bool((state.aside[slots] != NOT_FED).all())
    )
