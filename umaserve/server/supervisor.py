"""Keeps an engine serving: starts it, replaces it when it dies or hangs, changes the model.

One engine is *current*: it takes new requests.  A load starts a *candidate* beside it, which
becomes current when it has proved itself; the old one is then *retiring* and ends what it runs.  A
dead current engine is replaced at once, and ``recovery.recover`` queues its requests again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import trio

from umaserve.config import Config
from umaserve.engine import messages as m
from umaserve.protocol import E_MODEL_001, E_MODEL_002, E_RUNTIME_001, ProtocolError
from umaserve.server import blame, memory
from umaserve.server.engine_handle import EngineExit, EngineHandle
from umaserve.server.logs import trace
from umaserve.server.loop_lock import LoopLock
from umaserve.server.meters import Meters
from umaserve.server.recovery import inherit, recover
from umaserve.server.sessions import Sessions

ENGINE_COMMAND = (sys.executable, "-m", "umaserve.engine")
ATTEMPTS = 3  # engines that may die in a row before they are ready
KILLED_ATTEMPT = 0.3  # what one that was killed from outside counts
RETRY_S = 0.1  # before the second attempt; then four times as long each
SHORT_LIFE_S = 2.0  # an engine that dies so soon, with nothing to do, is not replaced at once
LONGEST_PAUSE_S = 10.0

Report = Callable[[float, str], None]


def start_message(config: Config, model_path: str) -> m.Start:
    """What to tell an engine, from the daemon's settings."""
    return m.Start(
        model_path=model_path,
        n_slots=config.max_sessions,
        n_ctx=config.n_ctx,
        n_seq=config.n_seq,
        clamp_ctx=not config.n_ctx_chosen,
        n_batch=config.n_batch,
        n_ubatch=config.n_ubatch,
        n_threads=config.threads,
        backend=config.backend,
        gpu_layers=config.gpu_layers,
        use_mmap=config.use_mmap,
        use_mlock=config.use_mlock,
        pretouch=config.pretouch,
        type_k=config.kv_type_k,
        type_v=config.kv_type_v,
        head_major=config.kv_pack == "head-major",
        max_merge=config.max_merge,
        tick_budget_ms=config.tick_budget_ms,
        latency_cap=config.latency_cap,
        bmt_budget=config.bmt_budget,
        policy=config.policy,
        without=tuple(config.without.split(",")) if config.without else (),
        prefill_threads=config.prefill_threads,
        log_level=config.log_level,
    )


class Supervisor:
    """``failed`` is set when the daemon's first engine cannot be started; ``failure`` says why."""

    def __init__(
        self,
        config: Config,
        sessions: Sessions,
        meters: Meters,
        log: Callable[..., None],
        command: Sequence[str] | None = None,
    ) -> None:
        self.config = config
        self.sessions = sessions
        self.meters = meters
        self.current: EngineHandle | None = None
        self.failed = trio.Event()
        self.failure = ""
        self.engines: list[EngineHandle] = []  # every process there is
        self._log = log
        self._command = tuple(command or ENGINE_COMMAND)
        self._loop_lock = LoopLock()
        self._nursery: trio.Nursery
        self._idle_deaths = 0  # in a row, soon after ready, with nothing to do
        self._served = False  # an engine has been ready once
        self._changing = False  # a load or an unload runs
        self._stopping = False

    # --- start and end ----------------------------------------------------------------------------

    async def run(self, model_path: str, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Start the first engine and keep one serving until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._begin(start_message(self.config, model_path))
            task_status.started()
            await trio.sleep_forever()

    async def stop(self) -> None:
        """Stop every engine; ``Sessions`` has been drained before."""
        self._stopping = True
        async with trio.open_nursery() as nursery:
            for engine in list(self.engines):
                nursery.start_soon(engine.stop)

    def _begin(self, start: m.Start) -> None:
        """Make a new engine the current one."""
        self.current = self._spawn(start)
        self.sessions.engine = self.current

    def _spawn(self, start: m.Start) -> EngineHandle:
        engine = EngineHandle(
            start,
            self._command,
            on_message=self._on_message,
            on_tokens=self.sessions.on_tokens,
            on_wake=self.sessions.on_wake,
            on_log=self._log,
            loop_lock=self._loop_lock,
            hang_floor_s=self.config.hang_timeout_s,
        )
        self.engines.append(engine)
        self._nursery.start_soon(self._tend, engine)
        return engine

    async def _tend(self, engine: EngineHandle) -> None:
        """The whole life of one engine, and what follows from its end."""
        try:
            exit = await engine.run()
        finally:
            self.engines.remove(engine)
        recover(self.sessions, engine, exit)
        if exit.kind == blame.ASKED or self._stopping:
            text = "the engine was stopped while this request ran"
            self.sessions.fail_waiting(engine.backlog.values(), E_RUNTIME_001, text)
        elif engine is self.current or engine.backlog:
            await self._replace(engine, exit)

    def _on_message(self, engine: EngineHandle, message: m.ToFront) -> None:
        if isinstance(message, m.Ready):
            again = engine.replaces and engine is self.current
            text = f"engine {engine.pid} is ready after {message.start_ms:.0f} ms"
            self._log("info" if again else "debug", f"serving again: {text}" if again else text)
            if engine is self.current:
                self._served = True
            self.sessions.pump(engine)
        else:
            self.sessions.on_message(engine, message)

    # --- death ------------------------------------------------------------------------------------

    async def _replace(self, engine: EngineHandle, exit: EngineExit) -> None:
        """An engine that is still needed is gone: start the next one, or give up."""
        reason = describe_exit(exit)
        deaths, pause_s = 0.0, 0.0
        if engine.ready is None:
            deaths = engine.deaths + (KILLED_ATTEMPT if exit.kind == blame.KILLED else 1.0)
            if deaths >= ATTEMPTS or (exit.load_failed and not self._served):
                self._give_up(engine, reason)
                return
            pause_s = RETRY_S * 4 ** int(deaths)
        else:
            self.meters.restarts_total += 1
            lived_s = (time.monotonic_ns() - engine.spawned_ns) / 1e9 - engine.ready.start_ms / 1e3
            idle = lived_s < SHORT_LIFE_S and not self.sessions.live
            self._idle_deaths = self._idle_deaths + 1 if idle else 0
            pause_s = min(0.1 * 2**self._idle_deaths, LONGEST_PAUSE_S) if idle else 0.0
        count = len(engine.backlog)
        self._log("warn", f"the engine {reason}; starting another, {count} requests go on")
        if pause_s:
            await trio.sleep(pause_s)
        if self._stopping or not (engine is self.current or engine.backlog):
            return
        start = engine.start
        if engine.ready is not None:
            # results differ in the last bits between numbers of threads: what resumes keeps them
            start = msgspec.structs.replace(
                start,
                n_threads=engine.ready.n_threads,
                n_threads_batch=engine.ready.n_threads_batch,
            )
        successor = self._spawn(start)
        successor.deaths = deaths
        successor.replaces = engine.ready is not None or engine.replaces
        inherit(successor, engine)
        if engine is self.current:
            self.current = self.sessions.engine = successor
        else:
            successor.accepting = False

    def _give_up(self, engine: EngineHandle, reason: str) -> None:
        text = f"{engine.start.model_path} cannot be served: {reason}"
        self.sessions.fail_waiting(engine.backlog.values(), E_RUNTIME_001, text)
        if engine is not self.current:
            return
        self.current = self.sessions.engine = None
        if not self._served:
            self.failure = text
            self.failed.set()
        else:
            self.sessions.closed = (E_MODEL_001, f"no model is loaded: {text}")
            self._log(
                "error",
                f"{text}; no model is loaded now. `umaserve doctor` shows what is wrong, "
                "`umaserve load MODEL` loads another model or tries again",
            )
        self.sessions.fail_queued(E_MODEL_002, text)

    # --- load and unload --------------------------------------------------------------------------

    async def load(self, model: str, report: Report) -> m.Ready:
        """Serve another model.  ``report(fraction, stage)`` hears about progress.

        Where memory allows both, the new engine proves itself beside the old one; else the old one
        is drained and stopped first, and comes back if the new one fails.  Raises ``ProtocolError``
        (``E_MODEL_002``); a model that was serving goes on serving.  The change runs to its end
        even if the caller, whose client may be gone, is cancelled.
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
            raise ProtocolError(E_MODEL_002, "the daemon is shutting down")
        return results[0]

    async def _load(self, model: str, report: Report) -> m.Ready:
        path = os.path.abspath(os.path.expanduser(model))
        try:
            file = await trio.to_thread.run_sync(memory.look_at, path)
            self._check_memory(file)
        except memory.ModelFileError as error:
            raise ProtocolError(E_MODEL_002, str(error)) from None
        start = start_message(self.config, path)
        if self.current is None or self._fits_beside(file):
            return await self._load_beside(start, report)
        return await self._load_instead(start, report)

    def _check_memory(self, file: memory.ModelFile) -> None:
        refusal = too_big(file, self.config)
        if refusal:
            raise memory.ModelFileError(refusal)

    def _fits_beside(self, file: memory.ModelFile) -> bool:
        config = self.config
        need = file.needs(config.n_ctx, config.kv_type_k, config.kv_type_v)
        old = self.current.ready if self.current is not None else None
        if old is not None and old.backend == "cpu":
            need += old.kv_bytes  # cells that nobody used yet are not in memory, but may come
        return need < memory.available_bytes()

    async def _load_beside(self, start: m.Start, report: Report) -> m.Ready:
        engine = self._spawn(start)
        try:
            ready = await self._wait_ready(engine, report)
        except trio.Cancelled:
            engine.kill()
            raise
        old, self.current = self.current, engine
        self._open()
        if old is not None:
            self._nursery.start_soon(self._retire, old)
        return ready

    async def _load_instead(self, start: m.Start, report: Report) -> m.Ready:
        old = self.current
        assert old is not None
        report(0.0, "draining")
        self.sessions.holding = True  # new requests wait
        await self.sessions.drain(old, self.config.drain_s)
        # it may have been replaced meanwhile
        old, self.current, self.sessions.engine = self.current, None, None
        if old is not None:
            await old.stop()
        try:
            engine = self._spawn(start)
            ready = await self._wait_ready(engine, report)
        except ProtocolError:
            if not self._stopping and old is not None:
                self._log("warn", f"loading {start.model_path} failed; the old model comes back")
                self._begin(old.start)
                self.sessions.holding = False
            raise
        self.current = engine
        self._open()
        return ready

    def _open(self) -> None:
        self._served = True
        self.sessions.engine = self.current
        self.sessions.holding = False
        self.sessions.closed = None
        self.sessions.pump()

    async def _wait_ready(self, engine: EngineHandle, report: Report) -> m.Ready:
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
        await self.sessions.drain(engine, self.config.drain_s)
        await engine.newest.stop()

    async def _unload(self) -> None:
        text = "no model is loaded; `umaserve load MODEL` loads one"
        self.sessions.closed = (E_MODEL_001, text)
        self.sessions.fail_queued(E_MODEL_001, text)
        if self.current is not None:
            await self.sessions.drain(self.current, self.config.drain_s)
            engine, self.current, self.sessions.engine = self.current, None, None
            if engine is not None:
                await engine.stop()


def too_big(file: memory.ModelFile, config: Config) -> str:
    """Why a model cannot fit this machine at all; empty where it can, or where nobody knows.

    Only for layers in main memory: what a graphics card holds is the engine's to judge.
    """
    if config.backend not in ("auto", "cpu", "metal"):
        return ""
    need = file.needs(config.n_ctx, config.kv_type_k, config.kv_type_v)
    total = memory.total_bytes()
    if need <= total:
        return ""
    kv = file.kv_bytes(config.n_ctx, config.kv_type_k, config.kv_type_v)
    return (
        f"{file.path} needs about {memory.gib(need)} ({memory.gib(file.size)} weights, "
        f"{memory.gib(kv)} KV cache for --n-ctx {config.n_ctx}) and this machine has "
        f"{memory.gib(total)}; use a smaller model or context"
    )


def describe_exit(exit: EngineExit) -> str:
    """How it ended and, where that explains it, the last it printed."""
    text = str(exit)
    if exit.load_failed or exit.kind != "fault" or exit.hung or not exit.stderr:
        return text
    last = [line for line in exit.stderr if line.strip()][-3:]
    return f"{text}; it last printed: " + " | ".join(last)
