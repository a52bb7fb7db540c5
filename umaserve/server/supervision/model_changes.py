"""Changes of the model that is served: load and unload, one at a time.

A load starts an engine next to the one that serves, which is then *retiring* and ends what it runs.
Where memory does not allow both, the old engine is drained and stopped first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import trio

from umaserve.config import Config
from umaserve.model_settings import AdapterSettings
from umaserve.protocol import E_MODEL_001, E_MODEL_002, STOPPING, ProtocolError
from umaserve.server.engines.exit import describe_exit
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.log.lines import trace
from umaserve.server.supervision.model_engines import ModelEngines
from umaserve.server.supervision.recovery import known_identity
from umaserve.texts import path_of
from umaserve.wire import messages as m

UNLOADED = (E_MODEL_001, "the model was unloaded before this answer had ended")
NOT_LOADED = "no model is loaded; `umaserve load MODEL` loads one"

Report = Callable[[float, str], None]


class ModelChanges:
    """Loads and unloads of one model."""

    def __init__(self, model: ModelEngines) -> None:
        self._model = model
        self._first: tuple[str, tuple[AdapterSettings, ...]] | None = None

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
        if self._model.is_changing:
            raise ProtocolError(E_MODEL_002, "another load or unload is running; try again later")
        self._model.is_changing = True
        done = trio.Event()
        results: list[Any] = []  # what the change returned, or the error that it raised

        async def run() -> None:
            try:
                results.append(await change(*args))
            except ProtocolError as error:
                results.append(error)
            except Exception as error:
                text = f"a load or an unload failed inside the daemon: {trace(error)}"
                self._model.log("error", text)
                text = f"it failed inside the daemon ({type(error).__name__}: {error}); see its log"
                results.append(ProtocolError(E_MODEL_002, text))
            finally:
                self._model.is_changing = False
                if len(self._model.service.room):  # they came meanwhile, and it may be asleep
                    self._model.wake()
                done.set()

        self._model.nursery.start_soon(run)
        await done.wait()
        result = results[0] if results else ProtocolError(E_MODEL_002, STOPPING)
        if isinstance(result, ProtocolError):
            raise result
        return result

    async def _load(self, model: str, report: Report) -> m.Ready:
        path = os.path.abspath(os.path.expanduser(path_of(model)))
        start = await self._model.prepare(path, self._config_for(path))
        if self._model.current is None or self._model.fits(self._model.need_bytes):
            return await self._load_next_to(start, report)
        return await self._load_instead(start, report)

    def _config_for(self, path: str) -> Config:
        """Return the settings for a model file; adapters are of the one that was configured."""
        config, engine = self._model.config, self._model.service.engine
        if self._first is None:
            first = engine.start.model_path if engine is not None else config.model
            self._first = os.path.abspath(os.path.expanduser(path_of(first))), config.lora
        first, lora = self._first
        return replace(config, model=path, lora=lora if path == first else ())

    async def _load_next_to(self, start: m.Start, report: Report) -> m.Ready:
        engine = self._model.spawn(start)
        try:
            ready = await wait_ready(engine, report)
        except trio.Cancelled:
            engine.kill()
            raise
        old, self._model.service.engine = self._model.service.engine, engine
        if old is not None:
            old.newest.replaced = True
        self._open()
        if old is not None:
            self._model.nursery.start_soon(self._retire, old)
        return ready

    async def _load_instead(self, start: m.Start, report: Report) -> m.Ready:
        old = self._model.current
        assert old is not None
        report(0.0, "draining")
        self._model.service.holding = True  # new requests wait
        await self._drain(old)
        # it may have been replaced meanwhile
        old, self._model.service.engine = self._model.service.engine, None
        if old is not None:
            await old.stop()
        if self._model.is_stopping:
            raise ProtocolError(E_MODEL_002, STOPPING)
        try:
            engine = self._model.spawn(start)
            ready = await wait_ready(engine, report)
        except Exception:
            if not self._model.is_stopping and old is not None:
                text = f"loading {start.model_path} failed; the old model comes back"
                self._model.log("warn", text)
                self._model.begin(old.start, known_identity(old))
            self._model.service.holding = False
            raise
        self._model.service.engine = engine
        self._open()
        return ready

    def _open(self) -> None:
        self._model.has_served = True
        self._model.next_try = None
        engine = self._model.current
        assert engine is not None and engine.ready is not None
        path = engine.start.model_path
        self._model.config = self._config_for(path)  # to wake up with
        self._model.tell_model(engine.ready)
        self._model.service.holding = False
        self._model.service.closed = None
        self._model.sessions.rows.pump(engine)

    async def _drain(self, engine: EngineHandle) -> None:
        await self._model.sessions.ends.drain(engine, self._model.config.drain_s, UNLOADED)

    async def _retire(self, engine: EngineHandle) -> None:
        engine.accepting = False
        await self._drain(engine)
        await engine.newest.stop()

    async def _unload(self) -> None:
        self._model.next_try = None
        name = self._model.service.name
        text = f"{name} is unloaded; `umaserve load {name}` loads it" if name else NOT_LOADED
        self._model.service.closed = (E_MODEL_001, text)
        self._model.sessions.refuse_queued(E_MODEL_001, text, self._model.service)
        if self._model.current is not None:
            await self._drain(self._model.current)
            engine, self._model.service.engine = self._model.service.engine, None
            if engine is not None:
                await engine.stop()
        self._model.tell_model(None)


async def wait_ready(engine: EngineHandle, report: Report) -> m.Ready:
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
