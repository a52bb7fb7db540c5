"""ΣBMT: background work is trimmed to what the budget of bytes leaves.

``Tick.bytes_left`` is a bucket that time fills, up to one tick budget, and every tick empties by
what it moved.  Interactive work is never refused; it may leave the bucket in debt, which background
work then waits for.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import (
    BANDWIDTH,
    FLAG_TRIMMED,
    KIND_ASIDE,
    KIND_BACK_DECODE,
    KIND_BACK_PROMPT,
    KIND_DECODE,
    KIND_NONE,
    KIND_PROMPT,
)

from .bandwidth import prompt_tokens_within, tick_bytes

LOOK_AGAIN_MS = 1.0


@njit(**INNER)
def hold_back(tick, knobs, memory, plan):
    """Leave all background work out of a tick while the bucket is empty.

    ``plan.info.wait_ms`` is set where nothing else remains.
    """
    found, kind = memory.found, memory.kind
    if not knobs.features & BANDWIDTH or tick.bytes_left > 0.0:
        return
    if found[KIND_BACK_DECODE] + found[KIND_BACK_PROMPT] == 0:
        return
    for s in range(kind.shape[0]):
        if kind[s] == KIND_BACK_DECODE or kind[s] == KIND_BACK_PROMPT:
            kind[s] = KIND_NONE
    found[KIND_BACK_DECODE] = found[KIND_BACK_PROMPT] = 0
    plan.info.marks |= FLAG_TRIMMED
    if found[KIND_DECODE] + found[KIND_PROMPT] + found[KIND_ASIDE] == 0:
        plan.info.wait_ms = LOOK_AGAIN_MS


@njit(**INNER)
def background_tokens(tick, knobs, memory, traffic, most):
    """Background prompt tokens that this tick's bytes allow: at least 1, so that they get on.

    The first one reads all weights, and more of them hardly anything else.  Where the bucket is
    smaller than the weights, a tick takes what moves twice the bytes of one token.  The debt is
    waited for afterwards.
    """
    if not knobs.features & BANDWIDTH or memory.found[KIND_BACK_PROMPT] == 0:
        return most
    rows = memory.found[KIND_DECODE] + memory.found[KIND_BACK_DECODE]
    one = tick_bytes(traffic, rows, rows + 1, tick.kv_cells + 1, rows + 1)
    left = max(tick.bytes_left, 2.0 * one)
    return max(prompt_tokens_within(traffic, left, rows, tick.kv_cells, most), 1)
