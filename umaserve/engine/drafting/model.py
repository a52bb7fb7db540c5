"""A draft model's part of a tick: what a small model says comes next, for the large one to verify.

It has a context of its own, with a sequence for each row of the session table.  What a sequence
holds of a text is known token by token.  So nobody has to say when a row parks, shifts, or gets
another request.  Tokens that the sequence has in common with the text stay, the others are cut off.

A step computes one token for each row that wants one: those that it has not read yet, then those
that it says itself.  Its choice is the likeliest token, since the row's own token is sampled by the
large model.  A text of which it has read little is read a chunk in each tick.
"""

from __future__ import annotations

from umaserve.drafts.rates import BY_MODEL, chance, hope
from umaserve.drafts.worth import could_gain
from umaserve.engine.native.batch import to_come
from umaserve.engine.native.calls import (
    call_i32_ptr_ptr,
    call_i64_ptr,
    call_i64_ptr_i32,
    call_i64_ptr_i32_i32_i32,
    now_ns,
)
from umaserve.engine.native.status import DECODED
from umaserve.jit.compiled import njit
from umaserve.jit.inner import INNER
from umaserve.policy.cost.model import learn, predict
from umaserve.sampling.select import argmax, find_maxima, row_at
from umaserve.wire.states import RUNNING

from .phases import may_draft
from .records import ALWAYS

NEAR = 4  # tokens that a row may be ahead of it and have some drafted
READ_MS = 5.0  # of a tick that it may read for at least
READ_SHARE = 0.2  # and of the tick itself: what the latency cap allows by default
WORTH_READING = 4  # times as many tokens may be read as there are to come
READ_WEIGHT = 1 / 4  # of a new chunk in what a token of them takes


@njit(**INNER)
def offer(speaker, columns, state, drafts, cost):
    """Say for which rows of the tick it can draft, and of which it is to read more.

    ``cost``: what ticks of the model take that it drafts for.
    """
    wanted, reading, rates = drafts.wanted, speaker.reading, drafts.wanted.rates
    terms, always = wanted.terms, drafts.marks.way == ALWAYS
    reading.behind, rows, late, need = -1, 0, 0, 0
    one_ms = predict(speaker.cost, 0, 1, 0, reading.used)
    for i in range(terms.rows):
        s = wanted.rows[i]
        if not may_draft(columns, s, drafts.marks.way) or state.lane[s] != terms.lane:
            continue
        hope(rates, s)
        n, most = columns.n_tokens[s], min(terms.most_each, to_come(columns, s) - 1)
        own = chance(rates, s, wanted.same[s]) if wanted.most[s] > 0 else 0.0
        right = chance(rates, s, BY_MODEL)
        if own >= right or most <= 0 or n + most >= speaker.held.shape[1]:
            continue
        if not always and not could_gain(wanted, cost, right, one_ms):
            continue
        whose = drafts.domain[s] if drafts.domain[s] else columns.arrival[s]
        ahead = keep_common(speaker, s, whose, columns.tokens[s], n)
        if not _has_room(speaker, state, need + ahead + most):
            continue
        need += ahead + most
        if ahead <= NEAR:
            wanted.same[s], wanted.most[s], drafts.found_at[s] = BY_MODEL, most, 0
            rows, late = rows + 1, max(late, ahead - 1)
        elif reading.behind < 0 and (always or ahead <= WORTH_READING * to_come(columns, s)):
            reading.behind = s
    terms.late, terms.step_ms = late, 0.0
    if rows:
        terms.step_ms = predict(speaker.cost, 0, rows, 0, reading.used)


@njit(**INNER)
def has_work(speaker, wanted):
    """Whether it is to say or to read anything in this tick."""
    if speaker.reading.behind >= 0:
        return True
    for i in range(wanted.terms.rows):
        s = wanted.rows[i]
        if wanted.same[s] == BY_MODEL and wanted.counts[s] > 0:
            return True
    return False


@njit(**INNER, _nrt=True)
def speak(speaker, columns, drafts, native):
    """Draft the tokens that rows have been given of it; none where it cannot be computed."""
    wanted, arrays = drafts.wanted, speaker.arrays
    while True:
        n = outputs = 0
        for i in range(wanted.terms.rows):
            s = wanted.rows[i]
            if wanted.same[s] != BY_MODEL or wanted.counts[s] == 0:
                continue
            at, known = speaker.n_held[s], columns.n_tokens[s]
            if at >= known + wanted.counts[s] - 1:
                continue
            token = columns.tokens[s, at] if at < known else drafts.tokens[s, at - known]
            _feed(speaker, n, s, at, token, at >= known - 1)
            if at >= known - 1:
                arrays.out_slot[outputs], arrays.out_row[outputs] = s, n
                outputs += 1
            n += 1
        if n == 0:
            return
        began = now_ns(native)
        if not _computed(speaker, native, n):
            _say_nothing(drafts)
            return
        for i in range(outputs):
            s = arrays.out_slot[i]
            address = call_i64_ptr_i32(speaker.logits_ith, speaker.context, arrays.out_row[i])
            row = row_at(address, speaker.n_vocab)
            token = argmax(row, speaker.maxima, find_maxima(row, speaker.maxima))
            drafts.tokens[s, speaker.n_held[s] - columns.n_tokens[s]] = token
        learn(speaker.cost, 0, n, 0, speaker.reading.used, (now_ns(native) - began) / 1e6)


@njit(**INNER)
def read_on(speaker, columns, wanted, native):
    """Read a chunk of the text that it is far behind, all but its last token."""
    reading = speaker.reading
    s = reading.behind
    if s < 0 or reading.failed:
        return
    held, known = speaker.n_held[s], columns.n_tokens[s]
    most_ms = max(READ_MS, READ_SHARE * wanted.kept.without_ms)
    most = max(int(most_ms / max(reading.token_ms, 1e-3)), NEAR)
    n = min(most, known - 1 - held, speaker.arrays.token.size)
    for i in range(n):
        _feed(speaker, i, s, held + i, columns.tokens[s, held + i], False)
    began = now_ns(native)
    if _computed(speaker, native, n):
        note_chunk(reading, n, (now_ns(native) - began) / 1e6)


@njit(**INNER)
def note_chunk(reading, n, ms):
    """A chunk of ``n`` tokens took so long."""
    weight = READ_WEIGHT if reading.token_ms > 0.0 else 1.0
    reading.token_ms += weight * (ms / n - reading.token_ms)


@njit(nogil=True, cache=True)
def try_out(speaker, native, chunk, times):
    """Compute a chunk and single tokens for nothing, to know what they take."""
    if speaker.context == 0:
        return
    chunk = min(chunk, speaker.held.shape[1] - times)
    for _ in range(times):
        for i in range(chunk):
            _feed(speaker, i, 0, i, 0, False)
        began = now_ns(native)
        if _computed(speaker, native, chunk):
            speaker.reading.token_ms = (now_ns(native) - began) / 1e6 / chunk
        for _ in range(times):
            _feed(speaker, 0, 0, speaker.n_held[0], 0, True)
            began = now_ns(native)
            if _computed(speaker, native, 1):
                learn(speaker.cost, 0, 1, 0, 0.0, (now_ns(native) - began) / 1e6)
        _cut(speaker, 0, 0)


@njit(**INNER)
def _feed(speaker, i, s, at, token, is_output):
    """Put a token into the batch, and into what its sequence holds."""
    arrays = speaker.arrays
    arrays.token[i], arrays.pos[i], arrays.seq[i] = token, at, s
    arrays.logits[i] = is_output
    speaker.held[s, at] = token
    speaker.n_held[s] = at + 1
    speaker.reading.used += 1


@njit(**INNER)
def _computed(speaker, native, n):
    """Have the first ``n`` tokens of the batch computed; False, and never again, if it fails."""
    speaker.arrays.n_tokens[0] = n
    status = call_i32_ptr_ptr(native.decode, speaker.context, speaker.batch)
    if status != DECODED:
        speaker.reading.failed = 1
        return False
    call_i64_ptr(native.synchronize, speaker.context)
    return True


@njit(**INNER)
def _say_nothing(drafts):
    """Take back what rows were given of it."""
    wanted = drafts.wanted
    for i in range(wanted.terms.rows):
        s = wanted.rows[i]
        if wanted.same[s] == BY_MODEL:
            drafts.marks.given -= wanted.counts[s]
            wanted.counts[s] = wanted.same[s] = 0


@njit(nogil=True, cache=True)
def keep_common(speaker, s, whose, tokens, n):
    """Cut off what a sequence does not share with the first ``n`` of its row's ``tokens``.

    Returns how many of these it lacks.  The last one always is among them: its logits are wanted.
    ``whose``: another number for each trust domain; what one has said saves no other any time.
    """
    held = speaker.n_held[s]
    same, most = 0, min(held, n - 1)
    if speaker.whose[s] != whose:
        speaker.whose[s], most = whose, 0
    while same < most and speaker.held[s, same] == tokens[same]:
        same += 1
    if same < held:
        _cut(speaker, s, same)
    return n - same


@njit(**INNER)
def _cut(speaker, s, n):
    """Leave the first ``n`` tokens of a row's sequence."""
    call_i64_ptr_i32_i32_i32(speaker.forget, speaker.memory, s, n, -1)
    speaker.reading.used -= speaker.n_held[s] - n
    speaker.n_held[s] = n


@njit(**INNER)
def _has_room(speaker, state, need):
    """Whether it has so many cells, if need be those of rows that do not run."""
    reading = speaker.reading
    for s in range(state.state.size):
        if reading.used + need <= reading.cells:
            return True
        if state.state[s] != RUNNING and speaker.n_held[s] > 0:
            _cut(speaker, s, 0)
    return reading.used + need <= reading.cells
