"""Replacements of engines that died: at once, after a pause, or after somebody asks again.

A dead engine that is still needed is replaced.  Where none can be started for the default model,
that is tried for ever, after pauses that grow.  Only the very first failure ends the daemon.
Another model is tried again when it is asked for.
"""

from __future__ import annotations

import time

import msgspec
import trio

from umaserve.protocol import E_MODEL_001, E_MODEL_002, E_RUNTIME_001
from umaserve.server.engines import blame
from umaserve.server.engines.exit import EngineExit, describe_exit
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.engines.start.model_start import bytes_of
from umaserve.server.engines.start.next_try import RETRY_S, NextTry, pause_s
from umaserve.server.requests.service import DEFAULT
from umaserve.server.supervision.model_engines import ModelEngines
from umaserve.server.supervision.recovery import inherit
from umaserve.wire import messages as m

ATTEMPTS = 3  # engines that may die in a row before they are ready
KILLED_ATTEMPT = 0.3  # what one that was killed from outside counts
SHORT_LIFE_S = 2.0  # engines that die so soon, one after the other, are not replaced at once
LONGEST_PAUSE_S = 10.0


class Replacements:
    """Engines that replace dead ones of one model."""

    def __init__(self, model: ModelEngines) -> None:
        self._model = model
        self._short_lives = 0  # in a row

    async def replace(self, engine: EngineHandle, exit: EngineExit) -> None:
        """An engine that is still needed is gone: start the next one, sooner or later."""
        reason = describe_exit(exit)
        deaths = 0.0
        if engine.ready is None:
            deaths = engine.deaths + (KILLED_ATTEMPT if exit.kind == blame.KILLED else 1.0)
            is_first = not self._model.has_served or self._model.service.number != DEFAULT
            if is_first and (deaths >= ATTEMPTS or exit.load_failed):
                self._give_up(engine, reason)
                return
            if deaths >= ATTEMPTS:
                self._nobody_waits(engine, reason)
                if engine is self._model.current:
                    await self._try_later(engine, reason, deaths)
                return
            wait_s = pause_s(deaths)
        else:
            self._model.meters.restarts_total += 1
            wait_s = self._pause_after_life(engine, exit)
        count = len(engine.backlog)
        who = "1 request goes" if count == 1 else f"{count} requests go"
        what = f"could not load its model: {reason}" if exit.load_failed else reason
        of = f" of {self._model.service.name}" if self._model.service.name else ""
        self._model.log("warn", f"the engine{of} {what}; starting another, {who} on")
        if wait_s:
            await self._pause(engine, wait_s)
        if self._model.is_stopping or not (engine is self._model.current or engine.backlog):
            return
        successor = self._model.spawn(self.start_again(engine))
        successor.deaths = deaths
        successor.replaces = engine.ready is not None or engine.replaces
        inherit(successor, engine)
        if engine is self._model.current:
            self._model.service.engine = successor
        else:
            successor.accepting = False
            successor.replaced = engine.replaced

    async def _pause(self, engine: EngineHandle, wait_s: float) -> None:
        """Wait, while no other model takes the memory that the engine had."""
        kept = bytes_of(engine)
        self._model.kept_bytes += kept
        try:
            await trio.sleep(wait_s)
        finally:
            self._model.kept_bytes -= kept

    def _pause_after_life(self, engine: EngineHandle, exit: EngineExit) -> float:
        """Before one that had been ready is replaced: none, unless such deaths go on and on."""
        assert engine.ready is not None
        lived_s = (time.monotonic_ns() - engine.spawned_ns) / 1e9 - engine.ready.start_ms / 1e3
        idle = not self._model.sessions.live
        short = lived_s < SHORT_LIFE_S and (idle or exit.kind == blame.FAULT)
        self._short_lives = self._short_lives + 1 if short else 0
        counted = self._short_lives if idle else self._short_lives - blame.CRASHES_OUT
        return min(0.1 * 2 ** min(counted, 10), LONGEST_PAUSE_S) if counted > 0 else 0.0

    @staticmethod
    def start_again(engine: EngineHandle) -> m.Start:
        if engine.ready is None:
            return engine.start
        # results differ in the last bits between numbers of threads: what resumes keeps them, and
        # the room that it was admitted to
        return msgspec.structs.replace(
            engine.start,
            n_ctx=engine.ready.n_ctx,
            n_threads=engine.ready.n_threads,
            n_threads_batch=engine.ready.n_threads_batch,
            probe=False,  # measuring may be what killed it; use tells the same in time
        )

    def _nobody_waits(self, engine: EngineHandle, reason: str) -> None:
        text = f"{engine.start.model_path} cannot be served: {reason}"
        self._model.sessions.ends.refuse(engine.backlog.values(), E_RUNTIME_001, text)

    def _give_up(self, engine: EngineHandle, reason: str) -> None:
        """The first engine cannot be started: of the default model, and the daemon ends; of
        another, and its next request tries again."""
        self._nobody_waits(engine, reason)
        if engine is self._model.current:
            self._model.service.engine = None
            self._model.failure = f"{engine.start.model_path} cannot be served: {reason}"
            if self._model.service.number == DEFAULT:
                self._model.failed.set()
            else:
                self._model.log("error", self._model.failure)
            why = (E_MODEL_002, self._model.failure)
            self._model.sessions.refuse_queued(*why, self._model.service)

    async def _try_later(self, engine: EngineHandle, reason: str, deaths: float) -> None:
        """No model is served for a while; what is in the way may pass, so try again, for ever.

        Somebody's `load` or `unload` takes the place of that.
        """
        start = engine.start
        next_try = self._model.next_try = NextTry(start.model_path, reason, deaths)
        self._model.service.engine = None
        self._model.service.closed = (E_MODEL_001, next_try.text())
        self._model.sessions.refuse_queued(*self._model.service.closed, self._model.service)
        self._model.log(
            "error",
            f"{start.model_path} cannot be served: {reason}; no model is loaded now, and this one "
            "is tried again after pauses that grow. `umaserve doctor` shows what is wrong, "
            "`umaserve load MODEL` loads another model or tries at once",
        )
        await trio.sleep(next_try.in_s)
        while self._model.is_changing:
            await trio.sleep(RETRY_S)
        if self._model.next_try is next_try and not self._model.is_stopping:
            self._model.begin(start, engine.identity)
            assert self._model.current is not None
            self._model.current.deaths, self._model.current.replaces = deaths, True

    def served_again(self) -> None:
        """An engine of the model is ready: no more is tried."""
        if self._model.next_try is not None and self._model.service.closed == (
            E_MODEL_001, self._model.next_try.text(),
        ):  # fmt: skip
            self._model.service.closed = None
        self._model.next_try = None
