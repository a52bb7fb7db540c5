"""From a logits row to a token: the chain that ``kernels`` and ``history`` are the steps of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray

from umaserve.jit.compiled import INNER, njit, pointer

from . import params as P
from .counted import TAKEN, count_row, counters
from .history import adjust
from .kernels import (
    XTC_MAX_THRESHOLD,
    XTC_STREAM,
    min_p,
    mirostat_candidates,
    mirostat_draw,
    top_p,
    typical_p,
    uniform,
    xtc,
)
from .mask import LATE, WORD, keep_allowed
from .mass import draw, exp_sum
from .select import (
    NEGATIVE_INFINITY,
    argmax,
    find_maxima,
    has_numbers,
    keep_largest,
    largest,
    row_at,
    sort_descending,
    top_k,
)
from .vector import BLOCK

TEMPERATURE, TOP_P, MIN_P, TYPICAL_P = P.TEMPERATURE, P.TOP_P, P.MIN_P, P.TYPICAL_P
XTC_PROBABILITY, XTC_THRESHOLD = P.XTC_PROBABILITY, P.XTC_THRESHOLD
MU = P.MU
TOP_K, LOGPROBS, SEED, MIROSTAT = P.TOP_K, P.LOGPROBS, P.SEED, P.MIROSTAT
BREAKERS, N_BREAKERS, MASK, AFTER = P.BREAKERS, P.N_BREAKERS, P.MASK, P.AFTER

NO_NUMBERS = -1  # instead of a token: the row's logits are no numbers
NO_CHOICE = -2  # the row's mask is not there, or it leaves nothing to choose


class Scratch(NamedTuple):
    """Work space of one sampling thread, allocated once.

    - ``ids`` int32[n_vocab], ``values`` float32[n_vocab]: candidates.
    - ``keys`` uint64[n_vocab]: what is being sorted.
    - ``maxima``, ``sums`` float32: one entry a block of the row.
    - ``counts`` int32[n_vocab]: by token, all zero between calls.
    - ``lengths`` int32[n_ctx]: of repetitions.
    - ``touched`` int32: which logits were changed in place.
    - ``original`` float32: what they were, for logprobs.
    - ``counted`` int64: rows read in place and bytes copied, since its owner last looked.
    """

    ids: np.ndarray
    values: np.ndarray
    keys: np.ndarray
    maxima: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray
    touched: np.ndarray
    original: np.ndarray
    counted: np.ndarray

    @classmethod
    def allocate(
        cls, n_vocab: int, n_ctx: int, n_eog: int, counted: np.ndarray | None = None
    ) -> Scratch:
        """Scratch for rows of up to ``n_vocab`` logits and histories of up to ``n_ctx`` tokens."""
        room = P.MAX_LOGIT_BIAS + 2 * n_ctx + n_eog + 1
        n_blocks = -(-n_vocab // BLOCK)
        return cls(
            np.zeros(n_vocab, np.int32),
            np.zeros(n_vocab, np.float32),
            np.zeros(n_vocab, np.uint64),
            np.zeros(-(-n_blocks // BLOCK) * BLOCK, np.float32),
            np.zeros(n_blocks, np.float32),
            np.zeros(n_vocab, np.int32),
            np.zeros(max(n_ctx, 1), np.int32),
            np.zeros(room, np.int32),
            np.zeros(room, np.float32),
            counters() if counted is None else counted,
        )


class Rows(NamedTuple):
    """The rows that are sampled, and where their tokens go; all of it borrowed.

    Row ``i`` of a tick is that of ``slots[i]`` (int32), and its logits lie at ``addresses[i]``
    (int64).  ``sampled[i]`` (int32) becomes its token.  ``settings`` and what follows is the
    engine's and the session table's, indexed by slot; ``eog`` int32 are the tokens that end a text.
    """

    slots: np.ndarray
    addresses: np.ndarray
    n_vocab: int
    settings: P.Settings
    tokens: np.ndarray
    n_tokens: np.ndarray
    n_prompt: np.ndarray
    eog: np.ndarray
    sampled: np.ndarray
    logprob: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray


@njit(nogil=True, cache=True)
def candidates(row, real, whole, top, index, work):
    """Fill ``work.ids``/``work.values`` (raw logits) with tokens to draw from.

    Returns (count, maximum).  ``count`` is 0 when every token of the row may be drawn as it stands
    (temperature alone).  ``work.maxima`` and ``top`` are the maxima of the row's blocks, and of the
    row.  ``index`` is the random number's counter.
    """
    count = 0
    if 0 < whole[TOP_K] < row.shape[0]:
        count = top_k(row, whole[TOP_K], top, work)
    if real[TYPICAL_P] < 1.0:
        count = typical_p(row, count, top, real[TYPICAL_P], work)
        top = largest(work.values, count)
    if real[TOP_P] < 1.0:
        count = top_p(row, count, top, real[TOP_P], work)
    if real[MIN_P] > 0.0:
        count = min_p(row, count, top, real[MIN_P], work)
    if (
        real[XTC_PROBABILITY] > 0.0
        and real[XTC_THRESHOLD] <= XTC_MAX_THRESHOLD
        and uniform(whole[SEED] ^ XTC_STREAM, index) <= real[XTC_PROBABILITY]
    ):
        count, top = xtc(row, count, top, real[XTC_THRESHOLD], work)
    return count, top


@njit(**INNER)
def choose(row, real, whole, top, index, work):
    """(token, count) for the settings in ``real`` and ``whole``, from the adjusted ``row``.

    It was drawn from the first ``count`` candidates of ``work``; 0: from the whole row.
    """
    temperature = real[TEMPERATURE]
    if temperature <= 0.0 or not NEGATIVE_INFINITY < top < np.inf:
        best = argmax(row, work.maxima, top)
        work.ids[0], work.values[0] = best, row[best]
        return best, 1
    u = uniform(whole[SEED], index)
    if whole[MIROSTAT]:
        count = mirostat_candidates(row, top, real, work)
        at, real[MU] = mirostat_draw(count, top, real, u, work)
        return np.int64(work.ids[at]), count
    count, top = candidates(row, real, whole, top, index, work)
    if count == 0:
        return draw(row, row.shape[0], temperature, top, u, work.sums), 0
    at = draw(work.values, count, temperature, top, u, work.sums)
    return np.int64(work.ids[at]), count


@njit(nogil=True, cache=True, _nrt=True)
def sample_row(row, slot, rows, work):
    """Draw a token from a row, or NO_CHOICE; returns (token, log-probability).

    ``row`` float32[n_vocab], C-contiguous, is read in place; biases, penalties and a mask change
    it.  Settings, earlier tokens and room for 20 alternatives come from ``rows`` (Rows), at
    ``slot``.  Alternatives are filled when the request asked for logprobs.  The random number's
    counter is the number of generated tokens.  ``work`` (Scratch) belongs to the calling thread.
    Log-probabilities are of the model's own distribution before any setting, or (AFTER) of the
    distribution that settings leave, as in llama.cpp's server.
    """
    at, settings = rows.n_tokens[slot], rows.settings
    top_ids, top_logprobs = rows.top_ids[slot, at], rows.top_logprobs[slot, at]
    real, whole = settings.real[slot], settings.whole[slot]
    top = NEGATIVE_INFINITY
    total = 0.0
    before = whole[LOGPROBS] >= 0 and whole[AFTER] == 0
    if before:
        top = find_maxima(row, work.maxima)
        total = top + np.log(exp_sum(row, row.shape[0], top, 1.0))
        wanted = whole[LOGPROBS]
        top_ids[:] = -1
        if wanted > 0:
            found = top_k(row, wanted, top, work)
            for i in range(found):
                top_ids[i] = work.ids[i]
                top_logprobs[i] = work.values[i] - total
    breakers = carray(pointer(whole[BREAKERS]), (whole[N_BREAKERS],), np.int32)
    changed = adjust(row, slot, settings, rows.tokens[slot, :at], rows.eog, breakers, work)
    work.counted[TAKEN] += changed  # their values, for the logprobs
    masked = whole[MASK] != 0
    if masked:
        words = (row.shape[0] + WORD - 1) // WORD
        keep_allowed(row, carray(pointer(whole[MASK]), (words,), np.int32))
    if changed > 0 or masked or not before:
        top = find_maxima(row, work.maxima)
    if masked and not top > NEGATIVE_INFINITY:
        return np.int64(NO_CHOICE), 0.0
    token, count = choose(row, real, whole, top, at - rows.n_prompt[slot], work)
    logprob = 0.0
    if whole[LOGPROBS] >= 0 and not before:
        logprob = rate_left(
            row, token, count, real[TEMPERATURE], whole[LOGPROBS], work, top_ids, top_logprobs
        )
    if before:
        value = row[token]
        for i in range(changed):
            if work.touched[i] == token:  # the first entry is the untouched value
                value = work.original[i]
                break
        logprob = value - total
    return token, logprob


@njit(nogil=True, cache=True, _nrt=True)
def sample_rows(first, n, rows, work):
    """Sample ``n`` of ``rows`` (Rows), from row ``first`` on.

    Writes their ``sampled`` and, where asked, the logprob columns at the new token's position.
    Counts in ``work.counted`` how the rows were read.  A row that says nothing, or has an infinite
    logit, gets NO_NUMBERS for a token; one whose mask is late, or forbids all, gets NO_CHOICE.
    """
    for i in range(first, first + n):
        slot, address = rows.slots[i], rows.addresses[i]
        wants = rows.settings.whole[slot]
        if wants[MASK] == LATE:
            rows.sampled[i] = NO_CHOICE
            continue
        row = row_at(address, rows.n_vocab)
        if not has_numbers(row):
            count_row(row, address, work.counted)
            rows.sampled[i] = NO_NUMBERS
            continue
        token, value = sample_row(row, slot, rows, work)
        count_row(row, address, work.counted)
        rows.sampled[i] = token if token < 0 or row[token] < np.inf else NO_NUMBERS
        if wants[LOGPROBS] >= 0:
            rows.logprob[slot, rows.n_tokens[slot]] = value


@njit(**INNER)
def rate_left(row, token, count, temperature, wanted, work, top_ids, top_logprobs):
    """Log-probability of ``token`` among the candidates that `choose` had; fills the alternatives.

    ``row`` is the adjusted row, and ``count`` as `choose` returned it.  What cannot be drawn is no
    alternative.
    """
    top_ids[:] = -1
    inverse = 1.0 / temperature if temperature > 0.0 else 1.0
    if count == 0:
        top = largest(work.maxima, work.maxima.shape[0])
        total = np.log(exp_sum(row, row.shape[0], top, inverse))
        if wanted > 0:
            count = top_k(row, wanted, top, work)
    else:
        top = largest(work.values, count)
        total = np.log(exp_sum(work.values, count, top, inverse))
        if count > wanted > 0:
            count = keep_largest(work.ids, work.values, count, wanted, top)
        if wanted > 0:
            sort_descending(work.ids, work.values, count, work.keys)
    for i in range(min(count, wanted)):
        if not work.values[i] > NEGATIVE_INFINITY:
            break
        top_ids[i] = work.ids[i]
        top_logprobs[i] = (work.values[i] - top) * inverse - total
    return (row[token] - top) * inverse - total
