"""Costs learned of ticks with drafts: ms of a token, and ms of a change of the tick's size."""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

CHANGE_WEIGHT, CHANGE_MOST = 1 / 8, 8.0  # of a new change, and ticks that one costs at most
ROUND_WEIGHT = 1 / 16  # of a new tick
# of a new tick in what tokens cost, at least; ticks before a change of the size that still count
PACE_WEIGHT, PACE_KEPT = 1 / 32, 4.0


@njit(nogil=True, cache=True)
def note_pace(kept, rows, tokens, ms):
    """A tick of so many rows brought so many tokens, for so much time by prediction."""
    if kept.pace_rows != rows:
        kept.pace_rows, kept.paces = rows, 0.0
    weight = max(1.0 / (kept.paces + 1.0), PACE_WEIGHT)
    kept.paces += 1.0
    kept.got += weight * (tokens - kept.got)
    kept.took_ms += weight * (ms - kept.took_ms)


@njit(**INNER)
def another_pace(kept):
    """The size changes: what tokens cost is soon another."""
    kept.paces = min(kept.paces, PACE_KEPT)


@njit(**INNER)
def token_ms(kept, rows, here):
    """Ms that a token of a tick of ``rows`` rows costs at present, at most its ms without drafts.

    ``here``: drafted tokens that a tick has at present.
    """
    without_ms = kept.without_ms / rows
    if here == 0 or kept.pace_rows != rows or kept.got <= 0.0:
        return without_ms
    return min(kept.took_ms / kept.got, without_ms)


@njit(**INNER)
def note_rounds(kept, taken, ms):
    """The tokens that were verified in a tick took so long behind it."""
    if taken > 0:
        kept.round_ms += ROUND_WEIGHT * (ms / taken - kept.round_ms)


@njit(nogil=True, cache=True)
def note_change(kept, tokens, wall_ms):
    """A tick of so many tokens is over: what a change of their number costs, and the tick after.

    Two ticks pay for it where a graph is captured.  A tick whose price is a guess, or 0, says
    nothing.
    """
    if tokens != kept.tokens:
        _end_change(kept)
        kept.change_left = 2 if kept.price_ms > 0.0 and not kept.is_guess else 0
    if kept.change_left > 0 and kept.price_ms > 0.0:
        over = max(wall_ms - kept.price_ms, 0.0)
        kept.changing_ms += min(over, CHANGE_MOST * kept.price_ms)
        kept.change_left -= 1
        if kept.change_left == 0:
            _end_change(kept)
    kept.tokens = tokens


@njit(**INNER)
def _end_change(kept):
    if kept.changing_ms > 0.0:
        weight = CHANGE_WEIGHT if kept.change_ms > 0.0 else 1.0
        kept.change_ms += weight * (kept.changing_ms - kept.change_ms)
    kept.changing_ms = 0.0
