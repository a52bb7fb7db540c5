"""Which requests get a KV sequence, and which rows give theirs up for them.

An interactive row takes the place of a row in the background, or of a program that holds more than
its share.  The row that gives way is parked.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

from umaserve.cache.entry import Entry
from umaserve.engine.cells import accounting as cells
from umaserve.engine.cells.ageing import Ageing, due
from umaserve.engine.model.loaded import Setup
from umaserve.engine.prefixes.prefixes import WORTH_A_WAIT
from umaserve.wire import table as t

from .apart import Apart
from .pictures import Pictures
from .seats import Seats
from .turns import AdapterTurns

AHEAD = 64  # tokens that each row may decode before the held cells are looked at again


class Turn(NamedTuple):
    """A held sequence ``seq`` that has the first ``n`` tokens of a row.

    ``mark``: what it is taken back to first, where it has more and its memory cannot be cut.
    """

    seq: int
    n: int
    mark: Entry | None


NO_TURN = Turn(-1, 0, None)


class Seating:
    """The way of waiting rows to a sequence; for the loop's thread.

    ``gives_way`` says whether nobody has labelled a row and its program has used up its allowance,
    at a time in ns.
    """

    def __init__(
        self, setup: Setup, seats: Seats, turns: AdapterTurns, apart: Apart, pictures: Pictures,
        gives_way: Callable[[int, int], bool],
    ) -> None:  # fmt: skip
        self._table, self._n_ctx = setup.table, setup.loaded.n_ctx
        self._seats, self._sequences, self._prefixes = seats, seats.sequences, seats.prefixes
        self._turns, self._apart, self._pictures = turns, apart, pictures
        self._gives_way = gives_way
        self._ageing = Ageing()
        self.last_prompt = 0  # tokens to compute of the request that was admitted last

    def admit(self, under_way: bool = False) -> bool:
        """Give KV sequences to waiting requests while both last.

        Somebody interactive takes the place of somebody in the background, or of a program that has
        more than its share: that one is parked.  False where this has to wait for the end of a
        decode that is ``under_way``.
        """
        table = self._table
        n_cells, now_ns = self._n_ctx, time.monotonic_ns()
        if not under_way:
            self._let_go()
        if t.WAITING not in table.state.tolist():
            self._prefixes.nobody_waits()
            return True
        while True:
            # each that gets a sequence may have others that wait for it
            later = {each for each in self._prefixes.followers() if not self._turn_of(each).n}
            later |= self._apart.later()
            slot = cells.next_to_admit(table, later)
            if slot < 0:
                return True
            aged = due(table, now_ns)
            aged = -1 if aged in later else aged
            if under_way and (aged >= 0 or self._touches_cells(slot)):
                return False
            free = self._sequences.available
            if aged >= 0 and free and cells.fits(table, aged, n_cells):
                slot = aged
                self._ageing.admitted(table, slot, now_ns)
            self._note(slot)
            while not self._sequences.available or not cells.fits(table, slot, n_cells):
                if not table.lane[slot] and self._gives_way(slot, now_ns):
                    # it is to age, and takes nobody's place
                    table.lane[slot], table.auto[slot] = t.LANE_BACKGROUND, t.AUTO_SUNK
                    break
                keep = self._ageing.keeps(table, now_ns)
                victim = cells.victim(table, alone=True, keep=keep)
                if table.lane[slot] or victim < 0 or not cells.gives_way(table, victim, slot):
                    return True
                if not cells.would_fit(table, slot, victim, n_cells):
                    return True  # not even with all parked that gives way
                if under_way:
                    return False
                self._seats.park(victim)
            else:
                self.place(slot, under_way)

    def place(self, slot: int, under_way: bool = False) -> None:
        """Give a sequence to a waiting request, and what is known of its tokens."""
        table = self._table
        goes_on = self._go_on(slot)
        if not goes_on:
            table.seq[slot], table.n_past[slot] = self._sequences.take(), 0
        if not under_way:
            self._let_go()
        if goes_on or self._prefixes.begin(slot, at_once=not self._seats.somebody_decodes()):
            self._run(slot)

    def _run(self, slot: int) -> None:
        """A row has a sequence, with all in it that was known of its tokens."""
        table = self._table
        if table.t_admit_ns[slot] == 0:
            table.t_admit_ns[slot] = time.monotonic_ns()
            cached = table.cached[slot] = int(table.n_past[slot])
            table.header.cached_tokens += cached
            self._prefixes.admitted(slot, cached)
            self.last_prompt = int(table.n_prompt[slot] - table.n_past[slot])
        self._prefixes.unpark(slot)
        if table.isolate[slot] == t.APART:
            self._apart.begin(slot)
        self._turns.begin(slot)
        table.state[slot] = t.RUNNING

    def _turn_of(self, slot: int) -> Turn:
        """The held sequence whose next turn a row is; `NO_TURN` if there is none."""
        table, held = self._table, self._sequences.next_turns
        domain, stops = self._prefixes.domain(slot), self._prefixes.checkpoints
        if domain is None or not held:
            return NO_TURN
        tokens = table.tokens[slot, : int(table.n_tokens[slot]) - 1]
        seq, n = held.find(domain, tokens)
        mark = None
        if stops is not None and n < held.size(seq):
            mark = stops.last(domain, tokens[:n])
            n = mark.p1 if mark is not None else 0
        known = self._prefixes.known(slot) if n else []
        if not n or known and known[-1].end >= n + WORTH_A_WAIT:
            return NO_TURN
        return Turn(seq, n, mark)

    def _go_on(self, slot: int) -> bool:
        """Let a row have the cells of the turn before, if they are held."""
        table = self._table
        seq, n, mark = self._turn_of(slot)
        if not n:
            return False
        self._prefixes.store.use(self._prefixes.known(slot))
        last, stops = self._pictures.last_position(slot, n), self._prefixes.checkpoints
        rewind = None
        if stops is not None and mark is not None:
            rewind = functools.partial(stops.rewind, seq, mark, last)
        if not self._sequences.go_on(seq, last, rewind):
            return False
        table.seq[slot], table.n_past[slot] = seq, n
        self._prefixes.went_on(slot)
        return True

    def _note(self, slot: int) -> None:
        """Say in the table what is known of a row that waits for the first time."""
        self._prefixes.note(slot)
        n = self._turn_of(slot).n
        if n and not self._table.t_admit_ns[slot]:
            self._table.cached[slot] = n

    def _touches_cells(self, slot: int) -> bool:
        """Whether a row needs cells before it runs, or of those that are held."""
        table, held = self._table, self._sequences.next_turns
        if table.is_parked(slot) or self._prefixes.known(slot) or self._prefixes.late.is_left:
            return True
        if self._pictures.has(slot):  # the ticks that are under way would not stop at them
            return True
        if not self._sequences.has_free:
            return True
        return bool(held) and (
            self._turn_of(slot).n > 0 or held.cells > self._room(cells.needed(table, slot))
        )

    def _room(self, more: int = 0) -> int:
        """Cells that rows leave for a while, and ``more`` of another one."""
        table = self._table
        rows = self._sequences.rows + (more > 0)
        return self._n_ctx - cells.cells_committed(table) - more - AHEAD * rows

    def _let_go(self) -> None:
        """Free what is held too long, or in the way of rows."""
        sequences, table = self._sequences, self._table
        if not sequences.next_turns or not sequences.rows:
            return  # nobody is slowed down
        running, now_s = cells.cells_committed(table), time.monotonic()
        while (seq := sequences.next_turns.overdue(running, self._room(), now_s)) >= 0:
            sequences.let_go(seq)

    def copy_prefixes(self, may_save: bool) -> None:
        """Restore beginnings of texts, and save some where streams leave the time for it."""
        for slot in self._prefixes.step(not self._seats.somebody_decodes(), may_save):
            self._run(slot)
