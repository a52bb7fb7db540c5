"""What a plan says about itself: bits in ``Plan.info[FLAGS]``, which is a float."""

from __future__ import annotations

from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER

from .base import FLAGS


@njit(**INNER)
def mark(plan, bits):
    """Set ``bits`` (sum of FLAG_*), whether or not some of them are set already."""
    plan.info[FLAGS] = int(plan.info[FLAGS]) | bits
