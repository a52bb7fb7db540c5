"""Keeps a model served: starts its engine, replaces it when it dies or hangs, changes the model.

One engine of a model is *current*: it takes new requests.  A load starts a *candidate* next to it,
which becomes current when it has proved itself.  The old one is then *retiring* and ends what it
runs.  A dead current engine is replaced at once, and ``recovery.recover`` queues its requests
again.  Where none can be started for the default model, that is tried for ever, after pauses that
grow; only the very first ends the daemon.  Another model is tried again when it is asked for.  A
model may be *asleep*: it has no engine, and its next request starts one.

Long: which engine serves, and which comes next, is one state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import trio

from umaserve.config import Config
from umaserve.models import needs as memory
from umaserve.models.header import GGUFError
from umaserve.models.identity import ModelIdentity
from umaserve.protocol import (
    E_LIMIT_002,
    E_MODEL_001,
    E_MODEL_002,
    E_RUNTIME_001,
    STOPPING,
    ProtocolError,
)
from umaserve.server.engines import blame
from umaserve.server.engines.descriptors import Reserve
from umaserve.server.engines.exit import EngineExit, describe_exit
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.engines.loop_lock import LoopLock
from umaserve.server.engines.model_start import memory_of, start_message, why_not_served
from umaserve.server.engines.model_watch import watch_file
from umaserve.server.engines.next_try import RETRY_S, NextTry, pause_s
from umaserve.server.engines.slow_files import ask_file
from umaserve.server.log.lines import trace
from umaserve.server.recovery import end_those_of_another_model, inherit, known_identity, recover
from umaserve.server.requests.meters import Meters
from umaserve.server.requests.service import DEFAULT, Service
from umaserve.server.requests.sessions import Sessions
from umaserve.system.own_python import run_module
from umaserve.texts import path_of
from umaserve.wire import messages as m

ENGINE_COMMAND = tuple(run_module("umaserve.engine"))
ATTEMPTS = 3  # engines that may die in a row before they are ready
KILLED_ATTEMPT = 0.3  # what one that was killed from outside counts
SHORT_LIFE_S = 2.0  # engines that die so soon, one after the other, are not replaced at once
LONGEST_PAUSE_S = 10.0
UNLOADED = (E_MODEL_001, "the model was unloaded before this answer had ended")
NOT_LOADED = "no model is loaded; `umaserve load MODEL` loads one"

Report = Callable[[float, str], None]


class Machine(NamedTuple):
    """Parts that the supervisors of all models share.

    ``make_room`` waits until a model fits beside the others; it raises ``ProtocolError``
    (``E_MODEL_002``) where it never will.
    """

    sessions: Sessions
    meters: Meters
    log: Callable[..., None]
    make_room: Callable[[Supervisor, memory.ModelFile], Awaitable[None]]
    fits: Callable[[int], bool]  # whether so many bytes are free beside all engines
    command: Sequence[str]  # that starts an engine
    reserve: Reserve
    loop_lock: LoopLock


class Supervisor:
    """``failed`` is set when the daemon's first engine cannot be started; ``failure`` says why.

    ``config`` has the settings of this model.
    """

    def __init__(self, config: Config, service: Service, machine: Machine) -> None:
        self.config = config
        self.service = service
        self.sessions = machine.sessions
        self.meters = machine.meters
        self.failed = trio.Event()
        self.failure = ""
        self.engines: list[EngineHandle] = []  # every process that this model has
        self._machine = machine
        self._log = machine.log
        self._nursery: trio.Nursery
        self.next_try: NextTry | None = None  # of a model that cannot be served now
        self._need_bytes = 0  # of the newest model file
        self.is_waking = False  # an engine is about to be started for a model that was asleep
        service.wake = self.wake
        self._short_lives = 0  # in a row
        self._served = False  # an engine has been ready once
        self._changing = False  # a load or an unload runs
        self._stopping = False
        self._positions = 0

    @property
    def current(self) -> EngineHandle | None:
        """The engine that takes new requests."""
        return self.service.engine

    @property
    def positions(self) -> int:
        """Tokens that one session holds, as far as that is known: of the newest model."""
        engine = self.current
        if engine is not None:
            ready, most = engine.ready, engine.start.positions
            self._positions = most if ready is None else min(ready.n_positions, most)
        return self._positions

    # --- start and end ----------------------------------------------------------------------------

    async def run(
        self, model: memory.ModelFile | None, *, task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Start the first engine, or sleep where ``model`` is ``None``; keep the model served until
        cancelled."""
        async with trio.open_nursery() as self._nursery:
            if model is not None:
                self._need_bytes = memory_of(model, self.config)
                self._begin(start_message(self.config, model))
            task_status.started()
            await trio.sleep_forever()

    def begin_stop(self) -> None:
        """Start no engine any more, and end each that loads and has no request."""
        self._stopping = True
        for engine in self.engines:
            if engine.ready is None and not engine.backlog:
                engine.kill()

    async def stop(self) -> None:
        """Stop every engine; ``Sessions`` has been drained before."""
        self.begin_stop()
        async with trio.open_nursery() as nursery:
            for engine in list(self.engines):
                nursery.start_soon(engine.stop)

    def _begin(self, start: m.Start, known: ModelIdentity | None = None) -> None:
        """Make a new engine the current one; ``known``: of the model that was served before."""
        self.service.engine = self._spawn(start)
        self.service.engine.identity = known

    def _spawn(self, start: m.Start) -> EngineHandle:
        engine = EngineHandle(
            start,
            self._machine.command,
            on_message=self._on_message,
            on_tokens=self.sessions.on_tokens,
            on_wake=self.sessions.on_wake,
            on_log=self._log,
            loop_lock=self._machine.loop_lock,
            hang_floor_s=self.config.hang_timeout_s,
            reserve=self._machine.reserve,
            service=self.service.number,
        )
        engine.need_bytes = self._need_bytes
        self.engines.append(engine)
        self._nursery.start_soon(self._tend, engine)
        if start.use_mmap:  # weights that were read do not change with the file
            self._nursery.start_soon(watch_file, engine, self._log)
        return engine

    async def _tend(self, engine: EngineHandle) -> None:
        """The whole life of one engine, and what follows from its end."""
        try:
            exit = await engine.run()
        finally:
            self.engines.remove(engine)
        recover(self.sessions, engine, exit)
        if exit.kind == blame.ASKED or self._stopping:
            why = (E_LIMIT_002, STOPPING) if self._stopping else UNLOADED
            self.sessions.fail_waiting(engine.backlog.values(), *why)
        elif engine is self.current or engine.backlog:
            await self._replace(engine, exit)

    def _on_message(self, engine: EngineHandle, message: m.ToFront) -> None:
        if isinstance(message, m.Ready):
            again = engine.replaces and engine is self.current
            text = f"engine {engine.pid} is ready after {message.start_ms:.0f} ms"
            self._log("info" if again else "debug", f"serving again: {text}" if again else text)
            if engine is self.current:
                self._served = True
                self._is_served_again()
                self._tell_model(message)
            end_those_of_another_model(self.sessions, engine)
            self.sessions.check_template(engine)
            self.sessions.pump(engine)
        else:
            self.sessions.on_message(engine, message)

    # --- death ------------------------------------------------------------------------------------

    async def _replace(self, engine: EngineHandle, exit: EngineExit) -> None:
        """An engine that is still needed is gone: start the next one, sooner or later."""
        reason = describe_exit(exit)
        deaths = 0.0
        if engine.ready is None:
            deaths = engine.deaths + (KILLED_ATTEMPT if exit.kind == blame.KILLED else 1.0)
            is_first = not self._served or self.service.number != DEFAULT
            if is_first and (deaths >= ATTEMPTS or exit.load_failed):
                self._give_up(engine, reason)
                return
            if deaths >= ATTEMPTS:
                self._nobody_waits(engine, reason)
                if engine is self.current:
                    await self._try_later(engine, reason, deaths)
                return
            wait_s = pause_s(deaths)
        else:
            self.meters.restarts_total += 1
            wait_s = self._pause_after_life(engine, exit)
        count = len(engine.backlog)
        who = "1 request goes" if count == 1 else f"{count} requests go"
        what = f"could not load its model: {reason}" if exit.load_failed else reason
        of = f" of {self.service.name}" if self.service.name else ""
        self._log("warn", f"the engine{of} {what}; starting another, {who} on")
        if wait_s:
            await trio.sleep(wait_s)
        if self._stopping or not (engine is self.current or engine.backlog):
            return
        successor = self._spawn(self._start_again(engine))
        successor.deaths = deaths
        successor.replaces = engine.ready is not None or engine.replaces
        inherit(successor, engine)
        if engine is self.current:
            self.service.engine = successor
        else:
            successor.accepting = False
            successor.replaced = engine.replaced

    def _pause_after_life(self, engine: EngineHandle, exit: EngineExit) -> float:
        """Before one that had been ready is replaced: none, unless such deaths go on and on."""
        assert engine.ready is not None
        lived_s = (time.monotonic_ns() - engine.spawned_ns) / 1e9 - engine.ready.start_ms / 1e3
        idle = not self.sessions.live
        short = lived_s < SHORT_LIFE_S and (idle or exit.kind == blame.FAULT)
        self._short_lives = self._short_lives + 1 if short else 0
        counted = self._short_lives if idle else self._short_lives - blame.CRASHES_OUT
        return min(0.1 * 2 ** min(counted, 10), LONGEST_PAUSE_S) if counted > 0 else 0.0

    @staticmethod
    def _start_again(engine: EngineHandle) -> m.Start:
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
        self.sessions.fail_waiting(engine.backlog.values(), E_RUNTIME_001, text)

    def _give_up(self, engine: EngineHandle, reason: str) -> None:
        """The first engine cannot be started: of the default model, and the daemon ends; of
        another, and its next request tries again."""
        self._nobody_waits(engine, reason)
        if engine is self.current:
            self.service.engine = None
            self.failure = f"{engine.start.model_path} cannot be served: {reason}"
            if self.service.number == DEFAULT:
                self.failed.set()
            else:
                self._log("error", self.failure)
            self.sessions.fail_queued(E_MODEL_002, self.failure, self.service)

    async def _try_later(self, engine: EngineHandle, reason: str, deaths: float) -> None:
        """No model is served for a while; what is in the way may pass, so try again, for ever.

        Somebody's `load` or `unload` takes the place of that.
        """
        start = engine.start
        next_try = self.next_try = NextTry.after(start.model_path, reason, deaths)
        self.service.engine = None
        self.service.closed = (E_MODEL_001, next_try.text())
        self.sessions.fail_queued(*self.service.closed, self.service)
        self._log(
            "error",
            f"{start.model_path} cannot be served: {reason}; no model is loaded now, and this one "
            "is tried again after pauses that grow. `umaserve doctor` shows what is wrong, "
            "`umaserve load MODEL` loads another model or tries at once",
        )
        await trio.sleep(next_try.in_s)
        while self._changing:
            await trio.sleep(RETRY_S)
        if self.next_try is next_try and not self._stopping:
            self._begin(start, engine.identity)
            assert self.current is not None
            self.current.deaths, self.current.replaces = deaths, True

    def _is_served_again(self) -> None:
        if self.next_try is not None and self.service.closed == (
            E_MODEL_001, self.next_try.text(),
        ):  # fmt: skip
            self.service.closed = None
        self.next_try = None

    def _tell_model(self, ready: m.Ready | None) -> None:
        """Make the model known by the names of its file; ``None``: no file is loaded."""
        names = () if ready is None else (ready.model_name, ready.model_path)
        self.sessions.services.serves(self.service, *names)
        if self.service.number == DEFAULT:
            model = "" if ready is None else _model_of(ready)
            self.sessions.count(self.meters.serves, model)

    # --- sleep ------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether it has an engine that nobody uses, so that it may sleep."""
        engine = self.current
        if engine is None or engine.ready is None or self._changing or self.is_waking:
            return False
        return not (engine.requests or engine.backlog or engine.is_asked or len(self.service.room))

    def wake(self) -> None:
        """Start an engine if the model is asleep."""
        is_asleep = self.current is None and self.service.closed is None
        if is_asleep and not (self.is_waking or self._changing or self._stopping):
            self.is_waking = True
            self._nursery.start_soon(self._wake)

    async def _wake(self) -> None:
        try:
            for engine in list(self.engines):  # that it had before it fell asleep
                await engine.exited.wait()
            file = await ask_file(memory.look_at, self.config.model)
            if refusal := why_not_served(file, self.config):
                raise ProtocolError(E_MODEL_002, refusal)
            await self._machine.make_room(self, file)
            if self.current is None and not self._stopping:
                self._need_bytes = memory_of(file, self.config)
                self._begin(start_message(self.config, file))
        except (GGUFError, ProtocolError) as error:
            text = error.message if isinstance(error, ProtocolError) else str(error)
            self.failure = text
            self._log("error", text)
            self.sessions.fail_queued(E_MODEL_002, text, self.service)
        finally:
            self.is_waking = False

    async def sleep(self) -> None:
        """End the engine of an idle model; its next request starts another one."""
        engine = self.current
        if engine is not None and self.is_idle:
            self.service.engine = None
            await engine.stop()

    # --- load and unload --------------------------------------------------------------------------

    async def load(self, model: str, report: Report) -> m.Ready:
        """Serve another model.  ``report(fraction, stage)`` hears about progress.

        Where memory allows both, the new engine proves itself next to the old one.  Else the old
        one is drained and stopped first, and comes back if the new one fails.  Raises
        ``ProtocolError`` (``E_MODEL_002``); a model that was serving goes on serving.  The change
        runs to its end even if the caller, whose client may be gone, is cancelled.
        """
        return await self._detached(self._load, model, report)

    async def unload(self) -> None:
        """Let what runs end (bounded), then stop the engine; new requests get ``E_MODEL_001``."""
        await self._detached(self._unload)

    async def _detached(self, change: Callable[..., Any], *args: Any) -> Any:
        """Run one change of the model in the supervisor's own nursery, and wait for it.

        The second of two changes at once is told, rather than kept waiting.
        """
        if self._changing:
            raise ProtocolError(E_MODEL_002, "another load or unload is running; try again later")
        self._changing = True
        done = trio.Event()
        results: list[Any] = []
        errors: list[ProtocolError] = []

        async def run() -> None:
            try:
                results.append(await change(*args))
            except ProtocolError as error:
                errors.append(error)
            except Exception as error:
                self._log("error", f"a load or an unload failed inside the daemon: {trace(error)}")
                text = f"it failed inside the daemon ({type(error).__name__}: {error}); see its log"
                errors.append(ProtocolError(E_MODEL_002, text))
            finally:
                self._changing = False
                done.set()

        self._nursery.start_soon(run)
        await done.wait()
        if errors:
            raise errors[0]
        if not results:
            raise ProtocolError(E_MODEL_002, STOPPING)
        return results[0]

    async def _load(self, model: str, report: Report) -> m.Ready:
        path = os.path.abspath(os.path.expanduser(path_of(model)))
        try:
            file = await ask_file(memory.look_at, path)
        except GGUFError as error:
            raise ProtocolError(E_MODEL_002, str(error)) from None
        if refusal := why_not_served(file, self.config):
            raise ProtocolError(E_MODEL_002, refusal)
        start = start_message(self.config, file)
        self._need_bytes = memory_of(file, self.config)
        if self.current is None or self._machine.fits(self._need_bytes):
            return await self._load_next_to(start, report)
        return await self._load_instead(start, report)

    async def _load_next_to(self, start: m.Start, report: Report) -> m.Ready:
        engine = self._spawn(start)
        try:
            ready = await self.wait_ready(engine, report)
        except trio.Cancelled:
            engine.kill()
            raise
        old, self.service.engine = self.service.engine, engine
        if old is not None:
            old.newest.replaced = True
        self._open()
        if old is not None:
            self._nursery.start_soon(self._retire, old)
        return ready

    async def _load_instead(self, start: m.Start, report: Report) -> m.Ready:
        old = self.current
        assert old is not None
        report(0.0, "draining")
        self.service.holding = True  # new requests wait
        await self.sessions.drain(old, self.config.drain_s, UNLOADED)
        # it may have been replaced meanwhile
        old, self.service.engine = self.service.engine, None
        if old is not None:
            await old.stop()
        if self._stopping:
            raise ProtocolError(E_MODEL_002, STOPPING)
        try:
            engine = self._spawn(start)
            ready = await self.wait_ready(engine, report)
        except Exception:
            if not self._stopping and old is not None:
                self._log("warn", f"loading {start.model_path} failed; the old model comes back")
                self._begin(old.start, known_identity(old))
            self.service.holding = False
            raise
        self.service.engine = engine
        self._open()
        return ready

    def _open(self) -> None:
        self._served = True
        self.next_try = None
        assert self.current is not None and self.current.ready is not None
        self.config = replace(self.config, model=self.current.start.model_path)  # to wake up with
        self._tell_model(self.current.ready)
        self.service.holding = False
        self.service.closed = None
        self.sessions.pump(self.current)

    async def wait_ready(self, engine: EngineHandle, report: Report) -> m.Ready:
        """Raises ``ProtocolError`` (``E_MODEL_002``) when the engine ends instead."""
        said = None
        while not engine.settled.is_set():
            with trio.move_on_after(0.1):
                await engine.settled.wait()
            progress = engine.progress
            if said != (progress.fraction, progress.stage):
                said = (progress.fraction, progress.stage)
                report(*said)
        if engine.ready is not None and engine.alive:
            return engine.ready
        await engine.exited.wait()
        assert engine.exit is not None
        text = f"{engine.start.model_path}: {describe_exit(engine.exit)}"
        raise ProtocolError(E_MODEL_002, text)

    async def _retire(self, engine: EngineHandle) -> None:
        engine.accepting = False
        await self.sessions.drain(engine, self.config.drain_s, UNLOADED)
        await engine.newest.stop()

    async def _unload(self) -> None:
        self.next_try = None
        name = self.service.name
        text = f"{name} is unloaded; `umaserve load {name}` loads it" if name else NOT_LOADED
        self.service.closed = (E_MODEL_001, text)
        self.sessions.fail_queued(E_MODEL_001, text, self.service)
        if self.current is not None:
            await self.sessions.drain(self.current, self.config.drain_s, UNLOADED)
            engine, self.service.engine = self.service.engine, None
            if engine is not None:
                await engine.stop()
        self._tell_model(None)


def _model_of(ready: m.Ready) -> str:
    """Tells a model that is served from all others: by its file and what this holds."""
    digest = ready.identity.digest if ready.identity is not None else ""
    return f"{digest} {ready.model_path}"
