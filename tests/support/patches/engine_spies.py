"""What an engine does, written down: see `tests.support.patches.engine`.

What a spy sees goes to the file ``path``, a line of JSON each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

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
    from umaserve.engine.loop.engine import Engine

    meanwhile = Engine._meanwhile

    def spied(engine: Any) -> bool:
        flight = engine.work.flight
        before = engine.table.abort.urgent_seen
        done = meanwhile(engine)
        urgent = engine.table.abort.urgent_seen - before  # requests that were taken
        rows, later = [int(flight.entries), int(flight.outputs_sent)], len(engine.inbox.later)
        say(path, rows, done, later, urgent)
        return done

    return_early()
    Engine._meanwhile = spied  # type: ignore[method-assign]


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
    from umaserve.engine.ticks import run

    make_team = run.make_team

    def watch(team: Any) -> None:
        while team.rows < 2:
            time.sleep(0.02)
        say(path, int(team.rows))

    def watched(*arguments: Any) -> Any:
        team, scratches = make_team(*arguments)
        threading.Thread(target=watch, args=(team,), daemon=True).start()
        return team, scratches

    run.make_team = watched


@once_numba_may_load
def spied_sequences(path: str) -> None:
    """Of each sequence that is given back: how many are held then.

    The processor's engine holds no cells, so it gets sequences for them.
    """
    from umaserve.engine.cells.sequences import Sequences
    from umaserve.engine.model import abilities, boot

    boot.spare_sequences = lambda *_: abilities.RESERVED + abilities.ENDED
    give_back = Sequences.give_back

    def spied(self: Any, *what: Any) -> None:
        give_back(self, *what)
        say(path, len(self.next_turns))

    Sequences.give_back = spied  # type: ignore[method-assign]


@once_numba_may_load
def spied_next_turns(
    path: str, graph: bool = False, late: str = "", dear: bool = False, whole: bool = True
) -> None:
    """Of each row that goes on in cells that were held: its tokens there, and what is held yet.

    And of each row whose text is saved later: its tokens.

    The processor's engine holds no cells, so it gets sequences for them.  It measures nothing in
    pauses, for which the cache is emptied.  ``graph``: it takes each pause to make the graph of a
    short prompt ready.  ``late``: "beside" streams that are always said to be there, texts
    that end are saved later, or "never" while their cells are held.  ``dear``: copies take so long
    that none is made beside streams.  Without ``whole`` no whole state can be restored.
    """
    from umaserve.engine.cells.sequences import Sequences
    from umaserve.engine.loop.idle_work import IdleWork
    from umaserve.engine.model import abilities, boot
    from umaserve.engine.prefill.ready_graph import ReadyGraph
    from umaserve.engine.prefixes.copies import WholeStates
    from umaserve.engine.prefixes.saving import Saver

    if not whole:
        WholeStates.restore = lambda *_: False  # type: ignore[method-assign]
    if dear:
        Saver.is_cheap = property(lambda self: False)  # type: ignore[assignment,method-assign]
    boot.spare_sequences = lambda *_: abilities.RESERVED + abilities.ENDED
    go_on, let_go = Sequences.go_on, Sequences.let_go

    def spied(self: Any, seq: int, last: int, rewind: Any = None) -> bool:
        done = go_on(self, seq, last, rewind)
        say(path, "on", last + 1, done, len(self.next_turns))
        return done

    def spied_let_go(self: Any, seq: int) -> None:
        let_go(self, seq)
        say(path, "let go", len(self.next_turns))

    prepare = ReadyGraph.prepare

    def prepared(self: Any, *what: Any) -> None:
        prepare(self, *what)
        say(path, "graph", self.is_ready)

    ReadyGraph.prepare = prepared  # type: ignore[method-assign]
    make = ReadyGraph.__init__

    def made(self: Any, *what: Any) -> None:
        make(self, *what)
        self.usable = graph

    begin = IdleWork.__init__

    def idle(self: Any, *what: Any) -> None:
        begin(self, *what)
        self._left = []

    _spy_on_late_texts(path, late)
    ReadyGraph.__init__ = made  # type: ignore[method-assign]
    IdleWork.__init__ = idle  # type: ignore[method-assign]
    Sequences.go_on, Sequences.let_go = spied, spied_let_go


def _spy_on_late_texts(path: str, late: str) -> None:
    from umaserve.engine.prefixes.late_texts import LateTexts
    from umaserve.engine.seats.seats import Seats

    put = LateTexts.put

    def spied_put(self: Any, late: Any) -> None:
        put(self, late)
        say(path, "later", late.text.tokens.size)

    LateTexts.put = spied_put  # type: ignore[method-assign]
    if late:
        Seats.somebody_decodes = lambda self: True  # type: ignore[method-assign]
    if late == "never":
        LateTexts.step = lambda self, **how: None  # type: ignore[method-assign]
        LateTexts.is_left = False  # type: ignore[assignment,method-assign]


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


@once_numba_may_load
def spied_filled_ticks(path: str) -> None:
    """After each tick: its tokens, those of nobody's behind them, and what is left of these.

    A tick of a few tokens is believed to take a second, and a filled one a millisecond.
    """
    from umaserve.engine.loop.engine import Engine
    from umaserve.policy.cost.model import PROMPT_EDGES, TILED, prompt_class

    tick, filled = Engine.tick, prompt_class(TILED)

    def spied(self: Any, most: int = 1) -> bool:
        mean, count = self.cost.mean[0, 0], self.cost.count[0, 0]
        mean[1:filled], mean[filled], count[1 : filled + 1] = 1000.0, 1.0, 32.0
        self.cost.tokens[0, 0] = PROMPT_EDGES
        ran = tick(self)
        facts, spare = max(self.work.facts, key=lambda each: each.decoded_ns), self.loaded.n_seq
        left = self.loaded.context.seq_pos_max(spare)
        say(path, int(facts.tokens), int(facts.filled), left)
        return ran

    Engine.tick = spied  # type: ignore[method-assign]
