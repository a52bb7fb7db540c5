"""What an engine does, written down: see `tests.support.patches.engine`.

What a spy sees goes to the file ``path``, a line of JSON each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.support.patches.engine import once_numba_may_load, say


@once_numba_may_load
def returning_early() -> None:
    return_early()


def return_early() -> None:
    """The engine takes libllama for a device that computes while ``llama_decode`` has returned."""
    from umaserve.engine.model.ways import Ways

    early = Ways(overlaps=True)
    Ways.of = lambda *_: early


@once_numba_may_load
def spied_meanwhile(path: str) -> None:
    """Of what is done under a decode: its rows, whether ticks went on, what waits, who was urgent.

    The processor's engine does nothing meanwhile, so it is told that it has an accelerator.
    """
    from umaserve.engine.loop import engine as loop

    meanwhile = loop.meanwhile

    def spied(engine: Any) -> bool:
        flight = engine.work.flight
        before = engine.table.abort.urgent_seen
        done = meanwhile(engine)
        urgent = engine.table.abort.urgent_seen - before  # requests that were taken
        say(path, [int(flight.entries), int(flight.outputs_sent)], done, len(engine.later), urgent)
        return done

    return_early()
    loop.meanwhile = spied


@once_numba_may_load
def spied_shapes(path: str) -> None:
    """After each run of ticks: the shape of the last one, and how many unlike it came before."""
    from umaserve.engine.loop.engine import Engine

    run = Engine.run

    def spied(self: Any) -> None:
        run(self)
        say(path, int(self.work.flight.last_shape), int(self.work.flight.unlike))

    Engine.run = spied


@once_numba_may_load
def watched_team(path: str) -> None:
    """Says how many rows libllama's threads sampled together, once these are two or more."""
    from umaserve.engine.loop import engine as loop

    make_team = loop.make_team

    def watch(team: Any) -> None:
        while team.rows < 2:
            time.sleep(0.02)
        say(path, int(team.rows))

    def watched(*arguments: Any) -> Any:
        team, scratches = make_team(*arguments)
        threading.Thread(target=watch, args=(team,), daemon=True).start()
        return team, scratches

    loop.make_team = watched


@once_numba_may_load
def spied_sequences(path: str) -> None:
    """Of each sequence that is given back: whether cells are known, used, the top, how many ended.

    The processor's engine copies nothing into its cache, so it is told that it does.
    """
    from umaserve.engine.cells.sequences import Sequences
    from umaserve.engine.model import abilities, boot

    boot.spare_sequences = lambda *_: abilities.RESERVED + abilities.ENDED
    made, give_back = Sequences.__init__, Sequences.give_back

    def making(self: Any, loaded: Any) -> None:
        made(self, loaded)
        self.keep()

    def spied(self: Any, *what: Any) -> None:
        give_back(self, *what)
        marks = self.cells.marks
        say(path, int(marks.valid), int(marks.used), int(marks.top), len(self._ended))

    Sequences.__init__, Sequences.give_back = making, spied


@once_numba_may_load
def spied_next_turns(path: str, graph: bool = False, late: str = "") -> None:
    """Of each row that goes on in cells that were held: its tokens there, and what is held yet.

    And of each row whose text is saved later: its tokens.

    The processor's engine keeps no cells, so it is told that it does.  It measures nothing in
    pauses, for which the cache is emptied.  ``graph``: it takes each pause to make the graph of a
    short prompt ready.  ``late``: "beside" streams that are always said to be there, texts
    that end are saved later, or "never" while their cells are held.
    """
    from umaserve.engine.cells.sequences import Sequences
    from umaserve.engine.loop.idle_work import IdleWork
    from umaserve.engine.model import abilities, boot
    from umaserve.engine.prefill.ready_graph import ReadyGraph

    boot.spare_sequences = lambda *_: abilities.RESERVED + abilities.ENDED
    made, go_on, let_go = Sequences.__init__, Sequences.go_on, Sequences.let_go

    def making(self: Any, loaded: Any) -> None:
        made(self, loaded)
        self.keep()

    def spied(self: Any, seq: int, n: int) -> bool:
        done = go_on(self, seq, n)
        say(path, "on", n, done, len(self.next_turns))
        return done

    def spied_let_go(self: Any, seq: int) -> None:
        let_go(self, seq)
        say(path, "let go", len(self.next_turns))

    prepare = ReadyGraph.prepare

    def prepared(self: Any, *what: Any) -> None:
        prepare(self, *what)
        say(path, "graph", self.is_ready)

    ReadyGraph.prepare = prepared  # type: ignore[method-assign]
    idle = IdleWork.__init__

    def idling(self: Any, engine: Any) -> None:
        idle(self, engine)
        self._left.clear()
        engine.graph.usable = graph

    _spy_on_late_texts(path, late)
    IdleWork.__init__ = idling
    Sequences.__init__, Sequences.go_on, Sequences.let_go = making, spied, spied_let_go


def _spy_on_late_texts(path: str, late: str) -> None:
    from umaserve.engine.loop.seats import Seats
    from umaserve.engine.prefixes.late_texts import LateTexts

    put = LateTexts.put

    def spied_put(self: Any, text: Any, *more: Any) -> None:
        put(self, text, *more)
        say(path, "later", text.tokens.size)

    LateTexts.put = spied_put  # type: ignore[method-assign]
    if late:
        Seats._somebody_decodes = lambda self: True  # type: ignore[method-assign]
    if late == "never":
        LateTexts.step = lambda self, may_save: None  # type: ignore[method-assign]
        LateTexts.is_left = False  # type: ignore[assignment,method-assign]


@once_numba_may_load
def spied_landings(path: str) -> None:
    """Of each row that ends: whether libllama's cells hold its positions in the order we know.

    And how many stretches each piece is going to be copied into.  The processor's engine computes
    in its one context what it can, so it is told that it has an accelerator.
    """
    from umaserve.engine.cells.sequences import Sequences, saved_positions
    from umaserve.engine.model import abilities, boot

    boot.spare_sequences = lambda *_: abilities.RESERVED + abilities.ENDED
    return_early()
    made, give_back, place = Sequences.__init__, Sequences.give_back, Sequences.place

    def making(self: Any, loaded: Any) -> None:
        made(self, loaded)
        self.keep()

    def given_back(self: Any, seq: int, empty: bool = False, ended: Any = None) -> None:
        cells, context = self.cells, self._context
        n = int(cells.cells[seq])
        if cells.marks.valid and n:
            said = cells.position[cells.owner == seq].tolist()
            saved = np.empty(context.state_seq_size(seq), np.uint8)
            context.state_seq_get(seq, saved)
            found = saved_positions(saved, 0, n).tolist()
            whole = n == context.seq_pos_max(seq) + 1
            say(path, "end", whole, found == said, found != sorted(found))
        give_back(self, seq, empty, ended)
        say(path, "kept", int(cells.marks.valid), len(self._ended))

    def placed(self: Any, seq: int, saved: np.ndarray, p0: int, p1: int) -> None:
        place(self, seq, saved, p0, p1)
        if p1 > p0:
            owner, position = self.cells.owner, self.cells.position
            mine = np.flatnonzero((owner == seq) & (position >= p0) & (position < p1))
            say(path, "place", p1 - p0, int((np.diff(mine) > 1).sum()) + 1)

    Sequences.__init__ = making
    Sequences.give_back, Sequences.place = given_back, placed


@once_numba_may_load
def spied_ready_graph(path: str) -> None:
    """Of each tick that could be filled up: its tokens, the spare row's last position, and after.

    The processor's backend gains nothing by it, so it is told that it does.
    """
    from umaserve.engine.prefill.ready_graph import ReadyGraph

    forget = ReadyGraph.forget

    def measure(self: Any) -> Iterator[None]:
        self.usable = True
        self.last_prompt = 0
        return iter(())

    def spied(self: Any) -> None:
        spare, context = self._loaded.n_seq, self._loaded.context
        before = context.seq_pos_max(spare)
        forget(self)
        tokens = int(self._batch.arrays.n_tokens[0])
        say(path, tokens, before, context.seq_pos_max(spare))

    ReadyGraph.measure, ReadyGraph.forget = measure, spied


@once_numba_may_load
def kept_domains(path: str) -> None:
    """The domains that have texts, each time that a row was parked or is no more."""
    from umaserve.engine.prefixes.prefixes import Prefixes

    park, unpark = Prefixes.park, Prefixes.unpark

    def parked(self: Any, slot: int) -> None:
        park(self, slot)
        say(path, self.store.domains())

    def unparked(self: Any, slot: int) -> None:
        unpark(self, slot)
        say(path, self.store.domains())

    Prefixes.park, Prefixes.unpark = parked, unparked
