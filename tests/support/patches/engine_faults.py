"""What goes wrong in an engine, or is said to: see `tests.support.patches.engine`."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import tempfile
import time
from functools import partialmethod
from typing import Any

import numpy as np

from tests.support.patches.engine import once_numba_may_load, say


def low_memory_lock_limit() -> None:
    """As for a user without privileges: no memory may be locked beyond the limit."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    capabilities = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, capabilities) == 0
    for i in range(2):
        capabilities[i] &= ~(1 << 14)  # CAP_IPC_LOCK, of those in effect and those permitted
    assert libc.capset(header, capabilities) == 0


def temporary_folder(folder: str) -> None:
    """There is no other one, for compiled code either."""
    tempfile.tempdir = os.environ["NUMBA_CACHE_DIR"] = folder


def working_folder(folder: str) -> None:
    os.chdir(folder)


@once_numba_may_load
def no_second_context() -> None:
    from umaserve.engine.prefill import second_context
    from umaserve.engine.prefill import thread as prefill_thread
    from umaserve.llama import ContextError

    def open_second(*_: Any, **__: Any) -> Any:
        raise ContextError("no context could be made: on purpose")

    second_context.open_second = prefill_thread.open_second = open_second


@once_numba_may_load
def slow_chunks(most: int, path: str) -> None:
    """Parts of chunks of more than ``most`` tokens seem to have taken 200 ms the last time.

    As with many more KV cells in front of them.  Says how many tokens each chunk has.
    """
    from umaserve.engine.prefill import thread as prefill_thread
    from umaserve.policy.cost.model import chunk_class

    begin_chunk = prefill_thread.begin_chunk

    def begin(gate: Any, tokens: int, whole: bool) -> None:
        if tokens > most:
            gate.times[chunk_class(tokens)] = 200_000_000
        say(path, tokens)
        begin_chunk(gate, tokens, whole)

    prefill_thread.begin_chunk = begin


@once_numba_may_load
def faulty_chunks(function: str) -> None:
    """A chunk calls that function of the C library instead: it never returns, or aborts."""
    from umaserve.engine.aside import lane
    from umaserve.engine.prefill import chunk_stack, worker

    class Faulty(chunk_stack.ChunkStack):
        def __init__(self, gate: Any, library: Any) -> None:
            super().__init__(gate, library)
            fault = getattr(ctypes.CDLL(None), function)
            gate.decode = ctypes.cast(fault, ctypes.c_void_p).value

    lane.ChunkStack = worker.ChunkStack = Faulty  # type: ignore[attr-defined]


@once_numba_may_load
def accused_with_others() -> None:
    """A row goes wrong whenever it is not alone."""
    from umaserve.engine.loop.engine import Engine
    from umaserve.wire.states import RUNNING

    tick = Engine.tick

    def accusing(self: Any, most: int = 1) -> Any:
        ran = tick(self, 1)
        running = [s for s, state in enumerate(self.table.state.tolist()) if state == RUNNING]
        if len(running) > 1:
            self.trials.accuse(running[:1])
        return ran

    Engine.tick = accusing


@once_numba_may_load
def no_logits_while(path: str) -> None:
    """``llama_get_logits_ith`` returns NULL while there is a file of this name."""
    from umaserve.engine.native.calls import Native

    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    make, kept = Native.of, []

    def of(*arguments: Any) -> Any:
        native = make(*arguments)
        real = kind(native.logits_ith)
        fails = kind(lambda context, row: None if os.path.exists(path) else real(context, row))
        kept.append(fails)  # ctypes does not
        return native._replace(logits_ith=ctypes.cast(fails, ctypes.c_void_p).value)

    Native.of = of


@once_numba_may_load
def slow_masks(seconds: float, number: int) -> None:
    """The ``number``-th mask of each request takes so long."""
    from umaserve.engine.constraints.bound import Bound

    advance, made = Bound._advance, dict[int, int]()

    def slow(self: Any, matcher: Any) -> Any:
        made[id(self)] = made.get(id(self), 0) + 1
        if made[id(self)] == number:
            time.sleep(seconds)
        return advance(self, matcher)

    Bound._advance = slow  # type: ignore[method-assign]


@once_numba_may_load
def memory_runs_out(sign: str) -> None:
    """Another program takes all memory as soon as there is a file called ``sign``."""
    from umaserve.engine.prefixes import memory_share

    honest = memory_share.available_bytes
    memory_share.available_bytes = lambda: 1 if os.path.exists(sign) else honest()
    memory_share.IDLE_LOOK_MS, memory_share.LOOK_S = 20, 0.01


@once_numba_may_load
def disturbed_and_checked(seed: int, keeps: bool = False) -> None:
    """After each run of ticks all cells are counted; now and then rows lose theirs, or all do.

    ``keeps``: cells of ended requests are held, as on an accelerator.
    """
    from umaserve.engine.loop.engine import Engine
    from umaserve.engine.model import abilities, boot
    from umaserve.wire import table as t

    tick, choose = Engine.tick, random.Random(seed)
    if keeps:
        boot.spare_sequences = lambda *_: abilities.RESERVED + abilities.ENDED

    def disturb(engine: Any) -> None:
        running = np.flatnonzero(engine.table.state == t.RUNNING).tolist()
        kind = choose.random()
        if kind < 0.03:
            engine.seats.evict()
        elif kind < 0.05 and running:
            engine.seats.park(choose.choice(running), keep=choose.random() < 0.7)
        elif kind < 0.053:
            engine.trials.park_all(running)  # and nothing stays in the prefix cache
        engine.seating.admit()  # ticks find nobody waiting who might run

    def checked(self: Any, most: int = 1) -> bool:
        disturb(self)
        self.check()
        ran = tick(self, min(most, 4))
        assert self.check() == self.table.header.cells_used, "what is told is not what is there"
        return ran

    Engine.tick = checked


@once_numba_may_load
def woken_late(late_s: float) -> None:
    """A busy machine: the loop gets on so late after each sleep, and a text takes some time too.

    Each pause makes a graph ready.
    """
    from umaserve.engine.admission.tokenizer_thread import TokenizerThread
    from umaserve.engine.prefill.ready_graph import ReadyGraph
    from umaserve.wire.control import Control

    receive, has_something = Control.receive, Control.has_something
    tokens_of = TokenizerThread._tokens_of

    def late(self: Any, sleep: Any, timeout_ms: int | None = 0) -> Any:
        out = sleep(self, timeout_ms)
        if timeout_ms != 0:
            time.sleep(late_s)
        return out

    def slowly(self: Any, message: Any) -> Any:
        time.sleep(0.002)
        return tokens_of(self, message)

    ReadyGraph.wanted = property(lambda self: True)  # type: ignore[assignment,method-assign]
    Control.receive = partialmethod(late, receive)  # type: ignore[assignment]
    Control.has_something = partialmethod(late, has_something)  # type: ignore[assignment]
    TokenizerThread._tokens_of = slowly  # type: ignore[method-assign]


@once_numba_may_load
def kept_without_end() -> None:
    """Of a rated prompt there is always a piece left that is to be kept."""
    from umaserve.engine.prefixes.prefixes import Prefixes

    bring = Prefixes.bring

    def endless(self: Any, *what: Any) -> bool:
        bring(self, *what)
        return True

    Prefixes.bring = endless  # type: ignore[method-assign]


@once_numba_may_load
def given_up_behind_pictures() -> None:
    """The first chunk behind each row's last picture seems to be given up for somebody else."""
    from umaserve.engine.loop.engine import Engine

    make_parts = Engine._make_parts

    def watched(engine: Engine) -> None:
        make_parts(engine)
        pictures, table = engine.pictures, engine.table
        decode = pictures._decode

        def giving_up(slot: int, placed: Any) -> None:
            decode(slot, placed)
            is_behind = int(table.n_past[slot]) == pictures._placed[slot][-1].end
            if is_behind and int(table.serial[slot]) not in given_up:
                given_up.add(int(table.serial[slot]))
                engine._aborted([slot])

        pictures._decode = giving_up  # type: ignore[method-assign]

    given_up: set[int] = set()
    Engine._make_parts = watched  # type: ignore[method-assign]


@once_numba_may_load
def lost_cells() -> None:
    """A row's cells stay when its sequence is given back: what a check has to find."""
    from umaserve.engine.cells.sequences import Sequences

    def forgetful(self: Any, seq: int, ended: Any = None) -> None:
        self.rows -= 1
        self._free.append(seq)

    Sequences.give_back = forgetful


@once_numba_may_load
def given_up_together(path: str) -> None:
    """Once three rows run, a tick of two of them is given up; says what the third one has then."""
    from umaserve.engine.loop.engine import Engine
    from umaserve.wire import table as t

    tick = Engine.tick
    said: list[int] = []

    def given_up(self: Any, most: int = 1) -> bool:
        table = self.table
        begun = np.flatnonzero((table.state == t.RUNNING) & (table.n_past > 0)).tolist()
        if len(begun) == 3 and not said:
            self._aborted(begun[:2])
            said.append(int(table.n_past[begun[2]]))
            say(path, *said)
            self.seating.admit()
        return tick(self, min(most, 4))

    Engine.tick = given_up
