"""Hidden states of the model, which its own heads for several tokens (MTP) read beside its tokens.

The heads have a context of their own, and cells of one layer.  They read a token together with the
state that the model had behind the token before.  The model's context has the states of a tick
until its next one.  So each tick ends with copies of its rows' newest states, from which the heads
draft later.  Where more of a row's states would be lost, as a prompt's, the heads read them first.

A text whose tokens were not all computed in such ticks gets no drafts of the heads.  Its beginning
came from the prefix cache, or was computed beside the ticks.  It has drafts all the same if the
heads hold this beginning, for its row or another row, such as that of the turn before.
"""

from __future__ import annotations

from umaserve.drafts.rates import BY_MODEL
from umaserve.engine.native.calls import call_i64_ptr, call_i64_ptr_four_i32
from umaserve.jit.compiled import INNER, njit
from umaserve.sampling.select import row_at

from .phases import may_draft
from .sequences import computed, copy_state, cut, feed, has_room, keep_common, keep_state, owner
from .speaker import KEPT


@njit(**INNER)
def take_states(speaker, columns, state, drafts, plan, entries, batch, native):
    """Take the hidden states of a tick's rows; before its drafts are settled."""
    here = call_i64_ptr(speaker.states_of, native.context)
    size, at = 4 * speaker.states.shape[2], 0
    for e in range(entries):
        s = plan.slots[e]
        if here and plan.counts[e] > 0 and not speaker.reading.failed:
            start, n = batch.pos[at], columns.n_past[s]
            if _follows(speaker, columns, drafts, s, start, n):
                _take(speaker, columns, state, s, start, n, here + size * at, native)
        at += plan.counts[e]
        if drafts.marks.given:
            at += drafts.wanted.counts[s]


@njit(**INNER)
def _follows(speaker, columns, drafts, s, start, n):
    """Whether the heads know all states of a row's text before ``start``; it has ``n`` now."""
    if n <= start or n >= speaker.held.shape[1] or not may_draft(columns, s, drafts.marks.way):
        return False
    if speaker.text[s] != columns.arrival[s] or speaker.n_known[s] != start:
        whose = owner(columns, drafts, s)
        keep_common(speaker, s, whose, columns.tokens[s], columns.n_tokens[s])
        if speaker.text[s] != columns.arrival[s] and speaker.n_known[s] < start:
            _adopt(speaker, s, whose, columns.tokens[s], start)
        speaker.text[s] = columns.arrival[s]
    return speaker.n_known[s] >= start


@njit(**INNER)
def _adopt(speaker, s, whose, tokens, n):
    """Let a row have what the heads hold for another one of the first ``n`` of its ``tokens``.

    They share the cells.
    """
    for other in range(speaker.n_held.size):
        if speaker.whose[other] != whose or speaker.n_known[other] < n:
            continue
        same = 0
        while same < n and speaker.held[other, same] == tokens[same]:
            same += 1
        if same < n:
            continue
        held = min(speaker.n_held[other], n)
        cut(speaker, s, 0)
        call_i64_ptr_four_i32(speaker.share, speaker.memory, other, s, 0, held)
        for at in range(n):
            speaker.held[s, at] = tokens[at]
        for at in range(KEPT):
            copy_state(speaker.states[other, at], speaker.states[s, at])
        speaker.reading.used += held
        speaker.n_held[s], speaker.n_known[s] = held, n
        return


@njit(**INNER, _nrt=True)
def _take(speaker, columns, state, s, start, n, here, native):
    """Keep a row's states from position ``start`` to ``n``, which begin at the address ``here``.

    The heads first read the tokens whose states there is no room for.  If there are no cells for
    these, the heads do not follow this text any more.
    """
    size, held = 4 * speaker.states.shape[2], speaker.n_held[s]
    if n + 1 - held > KEPT:
        if not has_room(speaker, state, n - held):
            return
        i = 0
        for at in range(held, n):
            feed(speaker, i, s, at, columns.tokens[s, at], False)
            if at > start:
                row = row_at(here + size * (at - 1 - start), size // 4)
                copy_state(row, speaker.inputs[i])
            i += 1
            if i == speaker.arrays.token.size or at == n - 1:
                if not computed(speaker, native, i):
                    return
                i = 0
    for at in range(max(start, n - KEPT), n):
        keep_state(speaker, s, at, here + size * (at - start))
    for at in range(start, n):
        speaker.held[s, at] = columns.tokens[s, at]
    speaker.n_known[s] = n


@njit(**INNER)
def catch_up(speaker, columns, wanted, native):
    """Have the heads read what rows that they draft for got since; False where that fails.

    For themselves, since libllama's heads tell no states of a batch that wants logits of a part.
    """
    n = 0
    for i in range(wanted.terms.rows):
        s = wanted.rows[i]
        if wanted.same[s] != BY_MODEL or wanted.counts[s] == 0:
            continue
        for at in range(speaker.n_held[s], columns.n_tokens[s] - 1):
            if n == speaker.arrays.token.size:
                if not computed(speaker, native, n):
                    return False
                n = 0
            feed(speaker, n, s, at, columns.tokens[s, at], False)
            n += 1
    return n == 0 or computed(speaker, native, n)
