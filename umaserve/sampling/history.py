"""Changes to the logits themselves: biases, penalties for what was said, DRY.

They are written into the row, which belongs to us until the next ``llama_decode``.  Only the few
values that change are copied, so that log-probabilities can be told of the model's own logits.
"""

from __future__ import annotations

import math

import numpy as np

from umaserve.jit.compiled import INNER, njit

from . import params as P

REPEAT, PRESENCE, FREQUENCY = P.REPEAT, P.PRESENCE, P.FREQUENCY
DRY_MULTIPLIER, DRY_BASE = P.DRY_MULTIPLIER, P.DRY_BASE
N_BIAS, IGNORE_EOS, LAST_N, MIROSTAT = P.N_BIAS, P.IGNORE_EOS, P.LAST_N, P.MIROSTAT
DRY_ALLOWED, DRY_LAST_N = P.DRY_ALLOWED, P.DRY_LAST_N
FLOAT_MAX_LOG = 88.7228391  # llama.cpp's bound of the exponent
FARTHEST = 1e38  # of a logit from 0, so that the difference of any two is a float32


@njit(nogil=True, cache=True)
def adjust(row, slot, settings, history, eog, breakers, work):
    """Apply the slot's settings to the row; returns how many of ``work.touched`` count.

    Mirostat takes the place of the chain, penalties included, as in llama.cpp's server.
    """
    real, whole = settings.real[slot], settings.whole[slot]
    changed = 0
    for i in range(whole[N_BIAS]):
        token = settings.bias_ids[slot, i]
        if 0 <= token < row.shape[0]:
            changed = note(row, token, changed, work)
            row[token] += settings.bias_values[slot, i]
    if whole[IGNORE_EOS]:
        for i in range(eog.shape[0]):
            changed = note(row, eog[i], changed, work)
            row[eog[i]] = -np.inf
    if whole[MIROSTAT]:
        return changed
    if real[REPEAT] != 1.0 or real[PRESENCE] != 0.0 or real[FREQUENCY] != 0.0:
        changed = penalties(row, real, whole[LAST_N], history, changed, work)
    if real[DRY_MULTIPLIER] != 0.0 and real[DRY_BASE] >= 1.0 and whole[DRY_LAST_N] != 0:
        changed = dry(row, real, whole, history, breakers, changed, work)
    return changed


@njit(nogil=True, cache=True)
def note(row, token, changed, work):
    """Remember a logit before it changes."""
    work.touched[changed] = token
    work.original[changed] = row[token]
    return changed + 1


@njit(**INNER)
def put(row, token, value):
    """Change a logit to ``value``, or as far as a float32 goes; banned tokens stay banned."""
    if -np.inf < row[token] < np.inf:
        row[token] = min(max(value, -FARTHEST), FARTHEST)


@njit(**INNER)
def first_of_last(length, last_n):
    """Where the last ``last_n`` of ``length`` tokens begin; -1 means all of them."""
    return 0 if last_n < 0 or last_n > length else length - last_n


@njit(nogil=True, cache=True)
def penalties(row, real, last_n, history, changed, work):
    """Repetition, frequency and presence penalties, as ``llama_sampler_init_penalties``."""
    counts = work.counts
    start = first_of_last(history.shape[0], last_n)
    for i in range(start, history.shape[0]):
        if history[i] >= 0:  # else it stands for a part of a picture
            counts[history[i]] += 1
    for i in range(start, history.shape[0]):
        token = max(history[i], 0)
        count = counts[token]
        if count == 0:
            continue
        counts[token] = 0
        changed = note(row, token, changed, work)
        value = float(row[token])
        value = value * real[REPEAT] if value <= 0.0 else value / real[REPEAT]
        put(row, token, value - count * real[FREQUENCY] - real[PRESENCE])
    return changed


@njit(**INNER)
def breaker_at(history, at, newest, breakers):
    """Length of the longest sequence breaker that begins at ``history[at]``, less one; or -1.

    ``breakers`` int32: ``umaserve.sampling.breakers`` says how it is laid out.
    """
    token = history[at]
    if token < 0 or token >= breakers[0]:
        return -1
    entry = breakers[1 + token]
    if entry == 0:
        return -1
    longest = -1
    n_tails = breakers[entry]
    entry += 1
    for _ in range(n_tails):
        length = breakers[entry]
        if length > longest and length <= newest - at:
            matches = True
            for j in range(length):
                if breakers[entry + 1 + j] != history[at + 1 + j]:
                    matches = False
                    break
            if matches:
                longest = length
        entry += 1 + length
    return longest


@njit(**INNER)
def is_single_breaker(token, breakers):
    """Whether ``token`` by itself is a sequence breaker; its empty tail then comes first."""
    if token >= breakers[0]:
        return False
    entry = breakers[1 + token]
    return entry != 0 and breakers[entry + 1] == 0


@njit(**INNER)
def _repeats(history, end, n, limit, lengths):
    """Set ``lengths[k]`` to the tokens, ``limit`` at most, that end both here and k tokens earlier.

    Z-algorithm over the last ``n`` tokens of ``history[:end]``, reversed.
    """
    left = right = 0
    for k in range(1, n):
        if k > right:
            same = 0
            while same + k < n and history[end - 1 - same] == history[end - 1 - same - k]:
                same += 1
            lengths[k] = min(same, limit)
            if same > 0:
                left, right = k, k + same - 1
        elif lengths[k - left] < right - k + 1:
            lengths[k] = min(lengths[k - left], limit)
        else:
            i = right + 1
            while i < n and history[end - 1 - i] == history[end - 1 - i + k]:
                i += 1
            lengths[k] = min(i - k, limit)
            left, right = k, i - 1


@njit(nogil=True, cache=True)
def dry(row, real, whole, history, breakers, changed, work):
    """Don't repeat yourself (p-e-w 2024), as ``llama_sampler_init_dry``.

    A token that would lengthen a repetition of ``n`` tokens loses multiplier * base ** (n -
    allowed).  Repetitions do not reach back over a sequence breaker.
    """
    end = history.shape[0]
    start = first_of_last(end, whole[DRY_LAST_N])
    n = end - start
    allowed = whole[DRY_ALLOWED]
    if n <= allowed:
        return changed
    limit = n
    for i in range(n):
        tail = breaker_at(history, end - 1 - i, end - 1, breakers)
        if tail >= 0:
            limit = i - tail
            break
    if limit < allowed:
        return changed
    lengths = work.lengths
    _repeats(history, end, n, limit, lengths)
    # the token after each repeated stretch would lengthen it
    longest = work.counts
    for k in range(1, n):
        token = history[end - k]
        if token >= 0 and lengths[k] >= allowed:
            longest[token] = max(longest[token], lengths[k] + 1)  # 0 means none
    most = 0
    if real[DRY_BASE] > 1.000001:
        most = int(FLOAT_MAX_LOG / math.log(real[DRY_BASE]))
    for k in range(1, n):
        token = max(history[end - k], 0)
        if longest[token] == 0:
            continue
        exponent = longest[token] - 1 - allowed
        longest[token] = 0
        if is_single_breaker(token, breakers):
            continue
        if most > 0 and exponent > most:
            exponent = most
        changed = note(row, token, changed, work)
        put(row, token, row[token] - real[DRY_MULTIPLIER] * real[DRY_BASE] ** exponent)
    return changed
