"""What a plan says about itself (`PlanInfo`)."""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER


@njit(**INNER)
def mark(plan, bits):
    """Set ``bits`` (sum of FLAG_*), whether or not some of them are set already."""
    plan.info.marks |= bits


@njit(nogil=True, cache=True)
def forget(info):
    """Make all of it 0: nothing is known about the next tick."""
    info.predicted_ms = info.baseline_ms = info.allowed_ms = info.wait_ms = info.abort_ms = 0.0
    info.slice_ms = 0.0
    info.marks = info.mode = info.interactive_rows = info.passengers = info.chunk_beside = 0
    info.redoes = 0
