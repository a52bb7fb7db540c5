"""Which requests hold a KV sequence, who waits for one, and who gives theirs up.

Somebody interactive takes the place of somebody in the background, or of a program that holds more
than its share.  Who gives way is parked: the prefix cache keeps what the cells held, and the row
begins with it later, as any prompt does.  What has no room there is computed again.  The session
table knows who is parked, and since when.

Long: every way to a sequence (empty, restored, taken over) and back stands together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from umaserve.cache import disk
from umaserve.cache.next_turn import FEWEST, Ended
from umaserve.engine.cells import accounting as cells
from umaserve.engine.cells.ageing import Ageing, due
from umaserve.engine.model.cost_file import saved_by
from umaserve.engine.prefixes.prefixes import WORTH_A_WAIT, Prefixes
from umaserve.engine.prefixes.shelf import Shelf
from umaserve.engine.start.whole import Whole
from umaserve.policy.urgency import gives_way
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.memory_order import stores_first

from .apart import Apart
from .full_rows import FullRows

AHEAD = 64  # tokens that each row may decode before the held cells are looked at again


class Seats:
    """The rows that run, those that were parked, and the way in; for the loop's thread."""

    def __init__(self, engine: Whole) -> None:
        self._engine = engine
        self._ageing = Ageing()
        self.full = FullRows(engine, self.drop_sequence)
        self.apart = Apart(engine)
        self._told = False
        self._shelf = self._find_shelf()
        self.prefixes = Prefixes(
            engine.loaded, engine.table, engine.sequences, engine.cost, engine.start.cache_bytes,
            self._shelf,
        )  # fmt: skip
        late = self.prefixes.late
        engine.sequences.leaving = lambda seq: late.save_all(seq, self.somebody_decodes())
        if self._shelf is not None and self.prefixes.is_on:
            self._shelf.start()

    @property
    def shelf_bytes_read(self) -> int:
        """Bytes read of texts that are kept on disk."""
        return self._shelf.bytes_read if self._shelf is not None else 0

    def _find_shelf(self) -> Shelf | None:
        """Where texts are kept on disk, if anywhere."""
        engine, start = self._engine, self._engine.start
        if not (start.cache_dir and start.cache_disk and start.cache_bytes):
            return None
        try:
            folder = disk.folder_of(start.cache_dir, saved_by(start, engine.loaded))
        except OSError as error:
            why = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
            engine.control.send(m.Log("warn", f"texts are not kept on disk: {why}"))
            return None
        return Shelf(folder, start.cache_disk, engine.control.notify)

    def close(self) -> None:
        """Write to disk what waits for it."""
        self.apart.close()
        if self._shelf is not None:
            self.prefixes.save_late()
            self._shelf.close()

    def _is_background(self, slot: int, now_ns: int) -> bool:
        """Whether nobody has labelled the row, and its program has used up its allowance."""
        engine = self._engine
        return bool(gives_way(engine.state, engine.knobs, engine.memory, slot, now_ns))

    def admit(self, under_way: bool = False) -> bool:
        """Give KV sequences to waiting requests while both last.

        Somebody interactive takes the place of somebody in the background, or of a program that has
        more than its share: that one is parked.  False where this has to wait for the end of a
        decode that is ``under_way``.
        """
        engine, table = self._engine, self._engine.table
        if engine.trials.wanted and (under_way or engine.trials.go_on()):
            return not under_way
        n_cells, now_ns = engine.loaded.n_ctx, time.monotonic_ns()
        if not under_way:
            self._let_go()
        if t.WAITING not in table.state.tolist():
            self.prefixes.nobody_waits()
            return True
        while True:
            # each that gets a sequence may have others that wait for it
            later = {each for each in self.prefixes.followers() if not self._turn_of(each)[1]}
            later |= self.apart.later()
            slot = cells.next_to_admit(table, later)
            if slot < 0:
                return True
            aged = due(table, now_ns)
            aged = -1 if aged in later else aged
            if under_way and (aged >= 0 or self._touches_cells(slot)):
                return False
            free = engine.sequences.available
            if aged >= 0 and free and cells.fits(table, aged, n_cells):
                slot = aged
                self._ageing.admitted(table, slot, now_ns)
            self._note(slot)
            while not engine.sequences.available or not cells.fits(table, slot, n_cells):
                if not table.lane[slot] and self._is_background(slot, now_ns):
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
                self.park(victim)
            else:
                self.place(slot, under_way)

    def place(self, slot: int, under_way: bool = False) -> None:
        """Give a sequence to a waiting request, and what is known of its tokens."""
        engine, table = self._engine, self._engine.table
        goes_on = self._go_on(slot)
        if not goes_on:
            table.seq[slot], table.n_past[slot] = engine.sequences.take(), 0
        if not under_way:
            self._let_go()
        if goes_on or self.prefixes.begin(slot, at_once=not self.somebody_decodes()):
            self._run(slot)

    def _turn_of(self, slot: int) -> tuple[int, int]:
        """The held sequence whose next turn a row is, and the tokens that it has; (-1, 0): none."""
        table, held = self._engine.table, self._engine.sequences.next_turns
        domain = self.prefixes.domain(slot)
        if domain is None or not held:
            return -1, 0
        seq, n = held.find(domain, table.tokens[slot, : int(table.n_tokens[slot]) - 1])
        if n < held.size(seq) and not self.prefixes.cuts:
            return -1, 0
        known = self.prefixes.known(slot) if n else []
        return (-1, 0) if known and known[-1].end >= n + WORTH_A_WAIT else (seq, n)

    def _go_on(self, slot: int) -> bool:
        """Let a row have the cells of the turn before, if they are held."""
        engine, table = self._engine, self._engine.table
        seq, n = self._turn_of(slot)
        if not n:
            return False
        self.prefixes.store.use(self.prefixes.known(slot))
        if not engine.sequences.go_on(seq, n, engine.pictures.last_position(slot, n)):
            return False
        table.seq[slot], table.n_past[slot] = seq, n
        self.prefixes.went_on(slot)
        return True

    def _note(self, slot: int) -> None:
        """Say in the table what is known of a row that waits for the first time."""
        self.prefixes.note(slot)
        n = self._turn_of(slot)[1]
        if n and not self._engine.table.t_admit_ns[slot]:
            self._engine.table.cached[slot] = n

    def _touches_cells(self, slot: int) -> bool:
        """Whether a row needs cells before it runs, or of those that are held."""
        table, held = self._engine.table, self._engine.sequences.next_turns
        if table.is_parked(slot) or self.prefixes.known(slot) or self.prefixes.late.is_left:
            return True
        if self._engine.pictures.has(slot):  # the ticks that are under way would not stop at them
            return True
        if not self._engine.sequences.has_free:
            return True
        return bool(held) and (
            self._turn_of(slot)[1] > 0 or held.cells > self._room(cells.needed(table, slot))
        )

    def _room(self, more: int = 0) -> int:
        """Cells that rows leave for a while, and ``more`` of another one."""
        engine, table = self._engine, self._engine.table
        rows = engine.sequences.rows + (more > 0)
        return engine.loaded.n_ctx - cells.cells_committed(table) - more - AHEAD * rows

    def _let_go(self) -> None:
        """Free what is held too long, or in the way of rows."""
        sequences, table = self._engine.sequences, self._engine.table
        if not sequences.next_turns or not sequences.rows:
            return  # nobody is slowed down
        running, now_s = cells.cells_committed(table), time.monotonic()
        while (seq := sequences.next_turns.overdue(running, self._room(), now_s)) >= 0:
            sequences.let_go(seq)

    def free_held(self) -> None:
        """Free all that is held, which is saved first: somebody needs an empty cache."""
        self.prefixes.save_late()
        sequences = self._engine.sequences
        while sequences.next_turns:
            sequences.let_go(sequences.next_turns.oldest())

    def _ended(self, slot: int) -> Ended | None:
        """Text of an ended row that its next turn may go on with; None where nothing is held."""
        table, sequences = self._engine.table, self._engine.sequences
        domain, n = self.prefixes.domain(slot), int(table.n_past[slot])
        if domain is None or n < FEWEST or not sequences.holds or table.isolate[slot]:
            return None
        program = int(table.program[slot])
        if not sequences.next_turns.is_worth(program):
            return None
        tokens = table.tokens[slot, :n].copy()
        more, now_s = int(table.more_cells[slot]), time.monotonic()
        return Ended(domain, program, tokens, int(table.n_prompt[slot]), now_s, more)

    def _run(self, slot: int) -> None:
        """A row has a sequence, with all in it that was known of its tokens."""
        engine, table = self._engine, self._engine.table
        if table.t_admit_ns[slot] == 0:
            table.t_admit_ns[slot] = time.monotonic_ns()
            cached = table.cached[slot] = int(table.n_past[slot])
            table.header.cached_tokens += cached
            self.prefixes.admitted(slot, cached)
            engine.graph.last_prompt = int(table.n_prompt[slot] - table.n_past[slot])
        self.prefixes.unpark(slot)
        if table.isolate[slot] == t.APART:
            self.apart.begin(slot)
        engine.turns.begin(slot)
        table.state[slot] = t.RUNNING

    def copy_prefixes(self, may_save: bool) -> None:
        """Copy beginnings of texts into the cache, and out of it where they ``may_save``."""
        if self._shelf is not None and self._shelf.problem and not self._told:
            self._told = True
            self._engine.control.send(m.Log("warn", self._shelf.problem))
        if self.prefixes.is_on:
            for slot in self.prefixes.step(not self.somebody_decodes(), may_save):
                self._run(slot)

    def somebody_decodes(self, is_paused: Callable[[int], bool] | None = None) -> bool:
        """Whether an answer is being read, which a long pause would hold up."""
        table = self._engine.table
        decodes = (table.state == t.RUNNING) & (table.n_tokens - table.n_past == 1)
        decodes &= table.lane == 0
        if is_paused is None:
            return bool(decodes.any())
        return not all(map(is_paused, np.flatnonzero(decodes).tolist()))

    def park(self, slot: int, keep: bool = True) -> None:
        """Take sequence and cells from a row; ``keep`` what they hold, or compute it again."""
        table = self._engine.table
        if keep and table.isolate[slot] != t.APART:
            self.prefixes.park(slot)
        self.drop_sequence(slot)
        table.t_wait_ns[slot] = time.monotonic_ns()
        table.state[slot] = t.WAITING
        table.header.preemptions += 1
        table.header.kv_evictions += 1

    def park_all(self, slots: list[int]) -> None:
        """Leave nothing in any memory of rows that run or were parked: all is computed again."""
        for slot in self.prefixes.clear():
            self.drop_sequence(slot)
        self.full.let_all_go()
        for slot in slots:
            self.park(slot, keep=False)

    def lose_states(self, given_up: list[int]) -> None:
        """Compute again what rows hold that had no part in a tick of several rows, ``given_up``.

        libllama puts the states of a tick side by side, and moves others out of their way while it
        computes.  Where it stops, a moved state is half what it was.
        """
        table, sequences = self._engine.table, self._engine.sequences
        self.prefixes.late.clear()
        while sequences.next_turns:
            sequences.let_go(sequences.next_turns.oldest())
        for slot in np.flatnonzero(table.seq >= 0).tolist():
            if slot in given_up:
                continue
            if table.state[slot] == t.RUNNING:
                self.park(slot, keep=False)
            elif table.state[slot] == t.WAITING:
                self.drop_sequence(slot)

    def evict(self) -> bool:
        """Free held cells, or send the newest session back to waiting until it has room again."""
        sequences = self._engine.sequences
        if sequences.next_turns:
            sequences.let_go(sequences.next_turns.oldest())
            return True
        slot = cells.victim(self._engine.table)
        if slot < 0:
            return False
        self.park(slot)
        return True

    def ended(self, slot: int) -> None:
        """The ticks have ended a row; what it has is free, unless its context may be shifted."""
        if self.full.keeps(slot):
            self.prefixes.keep(slot)
            self.prefixes.forget(slot)  # its cells will not be those of its tokens alone
        else:
            self.leave(slot)

    def leave(self, slot: int, empty: bool = False) -> None:
        """Free all that an ended row has in the engine.

        ``empty``: the row has no cells, so libllama need not look through all of them.
        """
        ended = None
        if not empty:
            ended, beside_streams = self._ended(slot), self.somebody_decodes()
            if ended is not None and (beside_streams or not self.prefixes.cuts):
                self.prefixes.keep_later(slot, ended)
            else:
                self.prefixes.keep(slot, not beside_streams)
            self._engine.remember_text(slot)
        self.drop_sequence(slot, empty, ended)
        self.prefixes.unpark(slot)

    def end(self, slot: int, reason: int, empty: bool = False) -> None:
        """A row is finished.  The state goes last: it is what the front looks at."""
        table = self._engine.table
        if reason == t.REASON_ERROR:
            self.prefixes.forget(slot)
        self.leave(slot, empty)
        table.in_tick[slot] = 0
        table.reason[slot] = reason
        stores_first()
        table.state[slot] = t.DONE

    def drop_sequence(self, slot: int, empty: bool = False, ended: Ended | None = None) -> None:
        """Take the KV sequence from a row; its cells are free afterwards, or held (``ended``)."""
        engine, table = self._engine, self._engine.table
        seq = int(table.seq[slot])
        if engine.worker is not None:
            engine.worker.forget(slot)
        engine.state.aside[slot] = 0
        self.prefixes.leave(slot)
        if seq >= 0:
            engine.sequences.give_back(seq, empty, ended)
            table.seq[slot] = -1
        table.n_past[slot] = 0
        table.header.cells_used = cells.cells_used(table)
