"""Rows that have a KV sequence, and all ways back from it: parked, evicted, ended.

The prefix cache keeps what the cells of a parked row held, and the row begins with it later, as any
prompt does.  What has no room there is computed again.  The session table knows which rows are
parked, and since when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from umaserve.cache.next_turn import FEWEST, Ended
from umaserve.drafts.ring import FEWEST_SHARED, remember
from umaserve.engine.cells import accounting as cells
from umaserve.engine.cells.sequences import Sequences
from umaserve.engine.drafting.records import Drafts
from umaserve.engine.model.loaded import Setup
from umaserve.engine.native.status import GIVEN_UP, NO_KV_SLOT, NO_LOGITS
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.engine.prefixes.prefixes import Prefixes
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.memory_order import stores_first


class Seats:
    """The rows that have a sequence; for the loop's thread.

    ``aside`` is the policy's column of the rows that are computed beside the ticks.
    """

    def __init__(
        self, setup: Setup, sequences: Sequences, prefixes: Prefixes, beside: PrefillWorker,
        aside: np.ndarray, drafts: Drafts,
    ) -> None:  # fmt: skip
        self._table, self._loaded, self._control = setup.table, setup.loaded, setup.control
        self.sequences, self.prefixes = sequences, prefixes
        self._beside, self._aside, self._drafts = beside, aside, drafts
        sequences.leaving = lambda seq: prefixes.late.let_go(seq, self.somebody_decodes())

    def somebody_decodes(self, is_paused: Callable[[int], bool] | None = None) -> bool:
        """Whether an answer is being read, which a long pause would hold up."""
        table = self._table
        decodes = (table.state == t.RUNNING) & (table.n_tokens - table.n_past == 1)
        decodes &= table.lane == 0
        if is_paused is None:
            return bool(decodes.any())
        return not all(map(is_paused, np.flatnonzero(decodes).tolist()))

    def free_held(self) -> None:
        """Free all that is held, which is saved first unless somebody asks for something."""
        self.prefixes.late.save_all(self._control.has_something)
        self.sequences.let_all_go()

    def park(self, slot: int, keep: bool = True) -> None:
        """Take sequence and cells from a row; ``keep`` what they hold, or compute it again."""
        table = self._table
        if keep and table.isolate[slot] != t.APART:
            self.prefixes.park(slot)
        self.drop_sequence(slot)
        table.t_wait_ns[slot] = time.monotonic_ns()
        table.state[slot] = t.WAITING
        table.header.preemptions += 1
        table.header.kv_evictions += 1

    def lose_states(self, given_up: list[int]) -> None:
        """Compute again the texts of all rows but ``given_up``, an aborted tick of several rows.

        libllama puts the states of a tick side by side, and moves other states out of their way
        while it computes.  Where it stops, a moved state is damaged.
        """
        table = self._table
        self.prefixes.late.clear()
        self.sequences.let_all_go()
        for slot in np.flatnonzero(table.seq >= 0).tolist():
            if slot in given_up or table.isolate[slot] == t.APART:
                continue
            if table.state[slot] == t.RUNNING:
                self.park(slot, keep=False)
            elif table.state[slot] == t.WAITING:
                self.drop_sequence(slot)

    def evict(self) -> bool:
        """Free held cells, or send the newest session back to waiting until it has room again."""
        sequences = self.sequences
        if sequences.next_turns:
            sequences.let_go(sequences.next_turns.oldest())
            return True
        slot = cells.victim(self._table)
        if slot < 0:
            return False
        self.park(slot)
        return True

    def leave(self, slot: int) -> None:
        """Free all that an ended row has in the engine."""
        beside_streams = self.somebody_decodes()
        ended = self._ended(slot, beside_streams)
        if ended is not None:
            self.prefixes.keep_later(slot, ended)
        else:
            self.prefixes.keep(slot, not beside_streams)
        self._remember_text(slot)
        self.drop_sequence(slot, ended)
        self.prefixes.unpark(slot)

    def _ended(self, slot: int, beside_streams: bool) -> Ended | None:
        """Text of an ended row that its next turn may go on with; None where nothing is held.

        Texts of programs without next turns are held only where nobody waits for their cells.
        Somebody may wait ``beside_streams``, and where memory cannot be cut, since held texts take
        the place of rows there.
        """
        table, sequences = self._table, self.sequences
        domain, n = self.prefixes.domain(slot), int(table.n_past[slot])
        if domain is None or n < FEWEST or not sequences.holds or table.isolate[slot]:
            return None
        program = int(table.program[slot])
        alone = self.prefixes.cuts and not beside_streams
        if not sequences.next_turns.is_worth(program, alone):
            return None
        tokens = table.tokens[slot, :n].copy()
        more, now_s = int(table.more_cells[slot]), time.monotonic()
        return Ended(domain, program, tokens, int(table.n_prompt[slot]), now_s, more)

    def _remember_text(self, slot: int) -> None:
        """Keep an ended row's text for drafts of its domain, but for its cached tokens."""
        drafts, table = self._drafts, self._table
        if drafts.marks.way and drafts.domain[slot] and table.n_tokens[slot] >= FEWEST_SHARED:
            domain, first = int(drafts.domain[slot]), int(table.cached[slot])
            remember(drafts.ring, domain, table.tokens[slot], first, int(table.n_tokens[slot]))

    def end(self, slot: int, reason: int) -> None:
        """A row is finished.  The state goes last: it is what the front looks at."""
        table = self._table
        if reason == t.REASON_ERROR:
            self.prefixes.forget(slot)
        self.leave(slot)
        table.in_tick[slot] = 0
        table.reason[slot] = reason
        stores_first()
        table.state[slot] = t.DONE
        self._control.wake()

    def fail(self, slots: Sequence[int], code: str, text: str) -> None:
        """End requests with an error."""
        self._control.send(m.Failed(self._table.serial[slots].tolist(), code, text))
        for slot in slots:
            self.end(slot, t.REASON_ERROR)

    def decode_failed(self, status: int, slots: list[int]) -> None:
        """Make room for a batch that ``llama_decode`` refused, or end its requests."""
        self._table.in_tick[slots] = 0
        if status == NO_KV_SLOT and self.evict():
            return
        text = {
            NO_KV_SLOT: "no KV cells were left for it",
            GIVEN_UP: "the backend aborted it",
        }.get(status, self._loaded.library_log_tail() or "see the daemon's log")
        text = f"llama_decode failed with status {status}: {text}"
        if status == NO_LOGITS:
            text = "libllama has no logits of a batch that it decoded"
        self.fail(slots, "E_RUNTIME_001", text)

    def drop_sequence(self, slot: int, ended: Ended | None = None) -> None:
        """Take the KV sequence from a row; its cells are free afterwards, or held (``ended``)."""
        table = self._table
        seq = int(table.seq[slot])
        self._beside.forget(slot)
        self._aside[slot] = 0
        self.prefixes.leave(slot)
        if seq >= 0:
            self.sequences.give_back(seq, ended)
            table.seq[slot] = -1
        table.n_past[slot] = 0
        table.header.cells_used = cells.cells_used(table)
