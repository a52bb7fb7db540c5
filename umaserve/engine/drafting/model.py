"""A draft model's part of a tick: what a small model says comes next, for the large one to verify.

The model's own heads (MTP) have the same part.  They read the model's hidden states beside the
tokens; `heads` has what is different about them.

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
from umaserve.engine.native.calls import call_i64_ptr_i32, now_ns
from umaserve.jit.compiled import INNER, njit
from umaserve.policy.cost.model import learn
from umaserve.policy.cost.prediction import predict
from umaserve.sampling.select import argmax, find_maxima, row_at

from .heads import catch_up
from .phases import may_draft
from .records import ALWAYS
from .sequences import computed, cut, feed, has_room, keep_common, keep_state, owner

NEAR = 4  # tokens that a row may be ahead of it and have some drafted
READ_MS = 5.0  # of a tick that it may read for at least
READ_SHARE = 0.2  # and of the tick itself: what the latency cap allows by default
WORTH_READING = 4  # times as many tokens may be read as there are to come
NEVER_READ = -1  # instead of a number of tokens
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
        ahead = _ahead(speaker, columns, drafts, s, n)
        if ahead == NEVER_READ or not has_room(speaker, state, need + ahead + most):
            continue
        need += ahead + most
        if ahead <= NEAR or speaker.states_of:
            wanted.same[s], wanted.most[s], drafts.found_at[s] = BY_MODEL, most, 0
            steps = min(ahead - 1, 1) if speaker.states_of else ahead - 1
            rows, late = rows + 1, max(late, steps)
        elif reading.behind < 0 and (always or ahead <= WORTH_READING * to_come(columns, s)):
            reading.behind = s
    terms.late, terms.step_ms = late, 0.0
    if rows:
        terms.step_ms = predict(speaker.cost, 0, rows, 0, reading.used)


@njit(**INNER)
def _ahead(speaker, columns, drafts, s, n):
    """Return how many of the first ``n`` tokens of a row have to be read; the last is among them.

    NEVER_READ where heads lack the hidden state of one.
    """
    if speaker.states_of == 0:
        return keep_common(speaker, s, owner(columns, drafts, s), columns.tokens[s], n)
    if speaker.text[s] != columns.arrival[s] or speaker.n_known[s] != n - 1:
        return NEVER_READ
    if speaker.n_held[s] >= n:
        cut(speaker, s, n - 1)
    return n - speaker.n_held[s]


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
    if speaker.states_of and not catch_up(speaker, columns, wanted, native):
        _say_nothing(drafts)
        return
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
            feed(speaker, n, s, at, token, at >= known - 1)
            if at >= known - 1:
                arrays.out_slot[outputs], arrays.out_row[outputs] = s, n
                outputs += 1
            n += 1
        if n == 0:
            break
        began = now_ns(native)
        if not computed(speaker, native, n):
            _say_nothing(drafts)
            return
        for i in range(outputs):
            s = arrays.out_slot[i]
            address = call_i64_ptr_i32(speaker.logits_ith, speaker.context, arrays.out_row[i])
            row = row_at(address, speaker.n_vocab)
            token = argmax(row, speaker.maxima, find_maxima(row, speaker.maxima))
            drafts.tokens[s, speaker.n_held[s] - columns.n_tokens[s]] = token
            if speaker.states_of:
                address = call_i64_ptr_i32(speaker.state_of, speaker.context, arrays.out_row[i])
                keep_state(speaker, s, speaker.n_held[s] - 1, address)
        learn(speaker.cost, 0, n, 0, speaker.reading.used, (now_ns(native) - began) / 1e6)
    for i in range(wanted.terms.rows if speaker.states_of else 0):
        s = wanted.rows[i]  # read again with the model's own states, if they are right
        if speaker.n_held[s] > columns.n_tokens[s]:
            cut(speaker, s, columns.n_tokens[s])


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
        feed(speaker, i, s, held + i, columns.tokens[s, held + i], False)
    began = now_ns(native)
    if computed(speaker, native, n):
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
            feed(speaker, i, 0, i, 0, False)
        began = now_ns(native)
        if computed(speaker, native, chunk):
            speaker.reading.token_ms = (now_ns(native) - began) / 1e6 / chunk
        for _ in range(times):
            feed(speaker, 0, 0, speaker.n_held[0], 0, True)
            began = now_ns(native)
            if computed(speaker, native, 1):
                learn(speaker.cost, 0, 1, 0, 0.0, (now_ns(native) - began) / 1e6)
        cut(speaker, 0, 0)


@njit(**INNER)
def _say_nothing(drafts):
    """Take back what rows were given of it; all, where rows must have equally many tokens."""
    wanted = drafts.wanted
    for i in range(wanted.terms.rows):
        s = wanted.rows[i]
        if wanted.terms.alike or wanted.same[s] == BY_MODEL:
            drafts.marks.given -= wanted.counts[s]
            wanted.counts[s] = wanted.same[s] = 0
