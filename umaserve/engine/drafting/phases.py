"""The ticks' end of drafts.

A row that decodes is fed its last known token, and behind it those that were drafted.  The token
after each is sampled in order, with the random number, the penalties and the mask of its position.
While it is the next of the drafted ones, the logits behind that are the row's next as well.  They
are sampled in another round.  So the row gets what it would have got without drafts, and nothing
behind a mismatch is ever sampled.  The cells of the rest are freed again.
"""

from __future__ import annotations

from umaserve.drafts.balance import begin_balance, settle_balance
from umaserve.drafts.index import CHAINED, begin, copy_on, find, keep_up
from umaserve.drafts.pace import note_change, note_pace, note_rounds
from umaserve.drafts.rates import BY_MODEL, forget_row, note
from umaserve.drafts.ring import copy_shared, find_shared
from umaserve.drafts.wanted import MOST, MOST_EACH
from umaserve.drafts.worth import choose
from umaserve.engine.native.batch import to_come
from umaserve.engine.native.calls import cut_end
from umaserve.jit.compiled import INNER, njit
from umaserve.policy.base import KIND_DECODE
from umaserve.policy.cost.prediction import predict
from umaserve.wire.states import RUNNING, WAITING

from .records import ALWAYS, SHORT_ANSWER

LONG = 10  # tokens that agree in its own text, with which no other is looked at
FIXED = 4  # tokens for each row where drafts are always tried


@njit(**INNER)
def look(entries, plan, columns, drafts):
    """Find, for each row of a plan that decodes, how its text went on before.

    Learns too how often it goes on like that, by what was found for the token before.  Returns how
    many KV cells those rows attend to.
    """
    wanted, marks = drafts.wanted, drafts.marks
    marks.rows = marks.given = marks.taken = 0
    attended = 0
    for e in range(entries):
        slot = plan.slots[e]
        wanted.counts[slot] = drafts.right[slot] = 0
        n, tokens = columns.n_tokens[slot], columns.tokens[slot]
        if n - columns.n_past[slot] != 1:
            continue
        wanted.rows[marks.rows] = slot
        marks.rows += 1
        attended += n
        wanted.most[slot] = wanted.same[slot] = 0
        if not may_draft(columns, slot, marks.way):
            continue
        if begin(drafts.texts, slot, columns.arrival[slot], columns.shifts[slot]):
            forget_row(wanted.rates, slot)
            begin_balance(wanted, slot, columns.program[slot])
            drafts.found_at[slot] = 0
        before, run = drafts.found_at[slot], 0
        drafts.found_at[slot] = 0
        if 0 < before < n:
            right = drafts.tokens[slot, 0] == tokens[before]
            note(wanted.rates, slot, drafts.found_same[slot], 1.0 if right else 0.0)
            run = wanted.run[slot] + 1 if right else 0
        wanted.run[slot] = run
        if not keep_up(drafts.texts, slot, tokens, n):
            continue
        if marks.only_model:
            continue
        wanted.most[slot] = max(min(wanted.terms.most_each, to_come(columns, slot) - 1), 0)
        _find(drafts, slot, tokens, n)
        if wanted.same[slot] > 0:
            drafts.found_at[slot], drafts.found_same[slot] = n, wanted.same[slot]
    return attended


@njit(nogil=True, cache=True)
def may_draft(columns, slot, way):
    """Return whether tokens may be drafted for a request: its answer may be long enough to gain."""
    if not columns.speculate[slot] or columns.isolate[slot]:
        return False
    return way == ALWAYS or columns.max_tokens[slot] > SHORT_ANSWER


@njit(**INNER)
def _find(drafts, slot, tokens, n):
    """Put down how a text of ``n`` tokens may go on: as itself before, or as others have.

    Where nothing is found it is a guess, for ticks whose number of tokens is to stay.
    """
    wanted, out = drafts.wanted, drafts.tokens[slot]
    place, same = find(drafts.texts, slot, tokens, n)
    if same < LONG and drafts.domain[slot]:
        shared, agree = find_shared(drafts.ring, drafts.domain[slot], tokens, n)
        if agree > same:
            wanted.same[slot] = agree
            most = copy_shared(drafts.ring, shared, out, MOST_EACH)
            wanted.most[slot] = min(wanted.most[slot], most)
            return
    wanted.same[slot] = same
    copy_on(tokens, n, place if same else max(n - MOST_EACH, 0), out, MOST_EACH)


@njit(nogil=True, cache=True)
def say_terms(entries, plan, state, knobs, memory, drafts, free):
    """Say what `give` has to know of a tick whose rows were looked at; ``free``: KV cells.

    Streams that take turns get none: each would make the others wait.  Nor does anybody while
    others run or wait, such as prompts, in this tick or not; but for trials.
    """
    wanted, terms, rows = drafts.wanted, drafts.wanted.terms, drafts.marks.rows
    need = interactive = here = 0
    for e in range(entries):
        need += plan.counts[e]
    for i in range(rows):
        interactive += state.lane[wanted.rows[i]] == 0
    for s in range(state.state.size):
        here += state.state[s] == RUNNING or state.state[s] == WAITING
    terms.mode, terms.rows, terms.prompt = plan.info.mode, rows, need - rows
    terms.room = min(min(free, knobs.n_batch) - need, MOST)
    terms.lane = 0 if interactive else 1
    terms.most_ms = knobs.tick_budget_ms
    terms.limit_ms = plan.info.allowed_ms if interactive else knobs.tick_budget_ms
    takes_turns = 0 < interactive < memory.found[KIND_DECODE]
    if takes_turns or here > rows and drafts.marks.way != ALWAYS:
        terms.room = 0
    if terms.alike and terms.prompt:
        terms.room = 0


@njit(**INNER)
def give(drafts, cost, lanes):
    """Draft tokens for the rows that were looked at; ``drafts.marks.given`` says how many."""
    wanted, marks = drafts.wanted, drafts.marks
    if marks.way == ALWAYS:
        marks.given = _give_some(wanted, cost)
    else:
        marks.given = choose(wanted, cost, lanes)


@njit(**INNER)
def _give_some(wanted, cost):
    """Give up to `FIXED` drafts to each row with a long match or a draft model; return the sum.

    Where all rows get equally many, any such row decides for all.
    """
    given, kept, tick = 0, wanted.kept, wanted.terms
    most, found = min(FIXED, tick.room // max(tick.rows, 1)), False
    for i in range(tick.rows):
        s = wanted.rows[i]
        most = min(most, wanted.most[s])
        found = found or wanted.same[s] >= CHAINED or wanted.same[s] == BY_MODEL
    for i in range(tick.rows):
        s = wanted.rows[i]
        if tick.alike:
            wanted.counts[s] = max(most, 0) if found else 0
        elif wanted.same[s] >= CHAINED or wanted.same[s] == BY_MODEL:
            wanted.counts[s] = max(min(FIXED, wanted.most[s], tick.room - given), 0)
        given += wanted.counts[s]
    kept.without_ms = predict(cost, tick.mode, tick.rows, tick.prompt, tick.past)
    kept.price_ms = predict(cost, tick.mode, tick.rows + given, tick.prompt, tick.past)
    return given


@njit(**INNER)
def go_on_with(columns, batch, work, drafts, first, count, row_bytes):
    """Give those of ``count`` rows another round that got the next of their drafted tokens.

    The rows are those from ``batch.out_slot[first]`` on, and have their tokens.  Others are added
    behind all rows that have logits.
    """
    added, end, counts = 0, work.flight.outputs_sent, drafts.wanted.counts
    for i in range(first, first + count):
        slot = batch.out_slot[i]
        right = drafts.right[slot]
        if right >= counts[slot] or work.sampled[i] != drafts.tokens[slot, right]:
            continue
        if columns.n_tokens[slot] == columns.n_past[slot] or columns.reason[slot] != 0:
            continue  # it has ended
        drafts.right[slot] = right + 1
        columns.n_past[slot] += 1
        batch.out_slot[end + added] = slot
        output = drafts.output[slot] + right + 1
        work.addresses[end + added] = work.flight.logits + row_bytes * output
        added += 1
    drafts.marks.taken += added
    work.flight.outputs_sent = end + added


@njit(**INNER)
def settle_drafts(columns, drafts, native, prompt, wall_ms, rounds_ms, speech_ms):
    """Free the cells of drafted tokens that no row got, and learn from the tick.

    ``prompt``: tokens of prompts that were in it.  It took ``wall_ms``, of these ``rounds_ms``
    behind the first token of each row.  A draft model took ``speech_ms`` before.
    """
    wanted, marks, whole_ms = drafts.wanted, drafts.marks, wall_ms + speech_ms
    if marks.given == 0 and wanted.kept.given > 0 and prompt == 0:
        for i in range(marks.rows):  # the change back is a part of what they cost
            settle_balance(wanted, wanted.rows[i], 1, whole_ms)
    wanted.kept.given = marks.given
    for i in range(marks.rows if marks.given else 0):
        slot = wanted.rows[i]
        count, right, same = wanted.counts[slot], drafts.right[slot], wanted.same[slot]
        if right < count:
            cut_end(native, columns.seq[slot], columns.n_past[slot])
        columns.drafted[slot] += count
        columns.accepted[slot] += right
        settle_balance(wanted, slot, 1 + right, whole_ms)
        # the first that the text itself says is looked at with the next tick
        for j in range(1 if same > 0 else 0, min(right + 1, count) if same else 0):
            note(wanted.rates, slot, same + j, 1.0 if j < right else 0.0)
        wanted.counts[slot] = 0
    if prompt:
        wanted.kept.price_ms = 0.0
    elif marks.rows and wanted.kept.price_ms > 0.0:
        tokens, ms = marks.rows + marks.taken, wanted.kept.price_ms + speech_ms
        note_pace(wanted.kept, marks.rows, tokens, ms)
    note_rounds(wanted.kept, marks.taken, rounds_ms)
    note_change(wanted.kept, marks.rows + marks.given + prompt, wall_ms - rounds_ms)
