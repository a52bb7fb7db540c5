"""Wakes of the front for tokens that are in the table."""

from __future__ import annotations

from umaserve.engine.native.calls import now_ns, wake
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER, PHASE
from umaserve.sampling.params import SLOW

from .account import account


@njit(**PHASE)
def tell(loop):
    """Wake the front for the tokens that are there, if the next rows take long."""
    flight = loop.work.flight
    if not loop.rows.settings.whole[loop.batch.out_slot[flight.settled], SLOW]:
        return  # more of the tokens that were drafted
    wake(loop.native)
    loop.work.facts[loop.work.flight.parity].told_ns = now_ns(loop.native)


@njit(**INNER, _nrt=True)
def publish_last(loop):
    """Wake the front for the tokens of the tick before, if they wait for that, and account it."""
    if loop.work.flight.unpublished:
        wake(loop.native)
        account(loop, 1 - loop.work.flight.parity)
        loop.work.flight.unpublished = 0
