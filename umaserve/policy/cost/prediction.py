"""Predicted cost of a tick, and the sizes of chunks that follow from it.

An unseen shape is estimated from its neighbours, with the higher estimate where there is a choice.
"""

from __future__ import annotations

import numpy as np

from umaserve.jit.compiled import INNER, njit

from .model import FRESH, N_PROMPTS, PROMPT_EDGES, SURE, at_fill, prompt_class, row_class

# inside a class of prompt tokens, cost against tokens: from above in both directions
STEEP_UP, STEEP_DOWN = 0.9, 0.5
# A chunk takes no longer than smaller ones for as many tokens, from so many on.  (Below, a few
# tokens may take another kernel than one.)  What was measured while others ran is found out by it.
PIECES, PIECES_COST = 8, 1.05
# Several rows take at most as many times what they take in turns: more than that was measured while
# others ran.  So much is worth a look (`sweet_spot.LOOK_AT_MOST`), and they are not merged for it.
IN_TURNS_COST = 1.25
# Share of a short prompt's time that a filled tick takes at most, the least of its tokens, and of
# the cells before them.  With fewer little is gained, and what is learned of it is noise.
FILLED_COST, FILLED_FROM, FILLED_PAST = 0.9, 8, 128


@njit(nogil=True, cache=True)
def is_known(cost, mode, rows, prompt):
    """Whether a tick of this shape was measured often enough to be believed."""
    return cost.count[mode, row_class(rows), prompt_class(prompt)] >= SURE


@njit(nogil=True, cache=True)
def predict(cost, mode, rows, prompt, past):
    """Expected wall time in ms of a tick; 0.0 where nothing is known that it could follow from."""
    if rows == 0 and is_filled(cost, mode, prompt, past):
        return _unfilled(cost, mode, 0, int(cost.filled[0]), past)
    return _unfilled(cost, mode, rows, prompt, past)


@njit(nogil=True, cache=True)
def is_filled(cost, mode, prompt, past):
    """Return whether a tick of ``prompt`` tokens of one sequence takes less where it is filled.

    It is filled up to ``cost.filled`` tokens, with tokens of nobody's.
    """
    most = int(cost.filled[0])
    if past < FILLED_PAST or not FILLED_FROM <= prompt < most:
        return False
    own = _unfilled(cost, mode, 0, prompt, past)
    return 0.0 < _unfilled(cost, mode, 0, most, past) <= FILLED_COST * own


@njit(**INNER)
def _unfilled(cost, mode, rows, prompt, past):
    """Expected ms of a tick of exactly so many tokens."""
    if rows + prompt == 0:
        return 0.0
    if prompt == 0:
        return _decode(cost, mode, rows, past)
    r, p = row_class(rows), prompt_class(prompt)
    if cost.count[mode, r, p] >= SURE:
        value = at_fill(cost, mode, r, p, rows, prompt, past)
        known = cost.tokens[mode, r, p]
        if p > 8:
            steep = STEEP_UP if prompt > known else STEEP_DOWN
            value *= 1.0 + steep * (prompt - known) / (known + rows)
            if rows == 0 and cost.count[mode, r, p] < FRESH:
                value = min(value, _in_pieces(cost, mode, p, prompt, past))
        return value
    if rows == 0:
        return _prompt_alone(cost, mode, prompt, past)
    decode = _decode(cost, mode, rows, past)
    alone = _prompt_alone(cost, mode, prompt, past)
    if decode <= 0.0 or alone <= 0.0:
        return 0.0
    below, above = _neighbours(cost.count[mode, r], p)  # with as many rows
    if below > 0 and above > 0:
        low = at_fill(cost, mode, r, below, rows, prompt, past)
        high = at_fill(cost, mode, r, above, rows, prompt, past)
        tokens = cost.tokens[mode, r]
        return _between(low, high, tokens[below], tokens[above], prompt)
    if below > 0:
        low = at_fill(cost, mode, r, below, rows, prompt, past)
        less = _prompt_alone(cost, mode, int(cost.tokens[mode, r, below]), past)
        return max(low, low + alone - less)
    together = decode + alone
    # what merging saved with one row, it is assumed to save with more
    if r > 1 and cost.count[mode, 1, p] >= SURE and cost.count[mode, 1, 0] >= SURE:
        saved = cost.mean[mode, 1, p] / (cost.mean[mode, 1, 0] + alone)
        together *= min(max(saved, 0.5), 1.2)
    return together


@njit(**INNER)
def _in_pieces(cost, mode, p, prompt, past):
    """Predicted ms of ``prompt`` tokens in smaller chunks, of the cheapest class below ``p``.

    inf if no smaller class was measured often enough.
    """
    best = np.inf
    for i in range(PIECES, p):
        if cost.count[mode, 0, i] >= SURE:
            tokens = cost.tokens[mode, 0, i]
            piece = at_fill(cost, mode, 0, i, 0, tokens, past)
            best = min(best, PIECES_COST * piece * prompt / tokens)
    return best


@njit(**INNER)
def _decode(cost, mode, rows, past):
    r = row_class(rows)
    if cost.count[mode, r, 0] >= SURE:
        value = at_fill(cost, mode, r, 0, rows, 0, past)
        if r > 1 and cost.count[mode, r, 0] < FRESH and cost.count[mode, 1, 0] >= SURE:
            value = min(value, IN_TURNS_COST * rows * at_fill(cost, mode, 1, 0, 1, 0, past))
        return value
    below, above = _neighbours(cost.count[mode, :, 0], r)
    if below > 0 and above > 0:
        low = at_fill(cost, mode, below, 0, rows, 0, past)
        high = at_fill(cost, mode, above, 0, rows, 0, past)
        t0, t1 = cost.rows[mode, below, 0], cost.rows[mode, above, 0]
        return _between(low, high, t0, t1, rows)
    if above > 0:
        return at_fill(cost, mode, above, 0, rows, 0, past)
    if below > 0:
        return at_fill(cost, mode, below, 0, rows, 0, past)
    if mode > 0:
        return 0.0
    # seen once is better than nothing
    if cost.count[mode, r, 0] > 0.0:
        return cost.mean[mode, r, 0]
    return 0.0


@njit(**INNER)
def _prompt_alone(cost, mode, prompt, past):
    if prompt <= 0:
        return 0.0
    p = prompt_class(prompt)
    below, above = _neighbours(cost.count[mode, 0], p)
    if cost.count[mode, 0, p] >= SURE:
        below = above = p
    if below < 0 and above < 0:
        for i in range(1, N_PROMPTS):  # seen once
            if cost.count[mode, 0, i] > 0.0:
                return cost.mean[mode, 0, i] * max(prompt / cost.tokens[mode, 0, i], 0.5)
        return 0.0
    if below < 0:
        return at_fill(cost, mode, 0, above, 0, prompt, past)
    low = at_fill(cost, mode, 0, below, 0, prompt, past)
    t0 = cost.tokens[mode, 0, below]
    if above < 0:
        return low * max(prompt / t0, 1.0)
    if above == below:
        return low * (1.0 + 0.9 * (prompt / t0 - 1.0))
    high = at_fill(cost, mode, 0, above, 0, prompt, past)
    return _between(low, high, t0, cost.tokens[mode, 0, above], prompt)


@njit(**INNER)
def _neighbours(counts, i):
    """The nearest classes below and above ``i`` that are believed; -1 where there is none."""
    below = above = -1
    for k in range(i - 1, 0, -1):
        if counts[k] >= SURE:
            below = k
            break
    for k in range(i + 1, counts.size):
        if counts[k] >= SURE:
            above = k
            break
    return below, above


@njit(**INNER)
def _between(low, high, t0, t1, t):
    """The cost at ``t`` on the line from ``low`` at ``t0`` to ``high`` at ``t1``."""
    return low + (high - low) * (t - t0) / max(t1 - t0, 1.0)


@njit(**INNER)
def predict_both(cost, mode, rows, row_past, prompt, past):
    """`predict` where each row attends to ``row_past`` cells and each prompt token to ``past``."""
    mean = (rows * row_past + prompt * past) / max(rows + prompt, 1)
    return predict(cost, mode, rows, prompt, mean)


@njit(nogil=True, cache=True)
def largest_chunk(cost, mode, rows, row_past, past, limit_ms, most):
    """The largest number of prompt tokens, up to ``most``, with which a tick stays in the limit.

    Each of the ``rows`` attends to ``row_past`` cells, and each of the tokens to ``past``.
    Sizes are the upper ends of the classes, quarters between two of them, or ``most``.  Shapes that
    repeat are shapes that are known.  0 where not even one token fits, or nothing is known.
    """
    best = 0
    for i in range(1, N_PROMPTS):
        tokens = min(PROMPT_EDGES[i], most)
        if tokens <= best:
            break
        ms = predict_both(cost, mode, rows, row_past, tokens, past)
        if 0.0 < ms <= limit_ms:
            best = tokens
        if tokens == most:
            break
    if best < 16 or best == most:
        return best
    step = (PROMPT_EDGES[prompt_class(best) + 1] - best) // 4
    for _ in range(3):
        tokens = min(best + step, most)
        ms = predict_both(cost, mode, rows, row_past, tokens, past)
        if step == 0 or not 0.0 < ms <= limit_ms:
            break
        best = tokens
    return best


@njit(nogil=True, cache=True)
def efficient_chunk(cost, past, limit_ms, most, share):
    """The smallest chunk alone whose tokens per ms are ``share`` of the best within the limit.

    Larger chunks gain little and make whoever comes next wait longer.  0 as `largest_chunk`.
    """
    best = 0.0
    for turn in range(2):
        for i in range(1, N_PROMPTS):
            tokens = min(PROMPT_EDGES[i], most)
            ms = predict(cost, 0, 0, tokens, past)
            if 0.0 < ms <= limit_ms:
                rate = tokens / ms
                if turn == 0:
                    best = max(best, rate)
                elif rate >= share * best:
                    filled = is_filled(cost, 0, tokens, past)
                    return min(int(cost.filled[0]), most) if filled else tokens
            if tokens == most:
                break
    return 0
