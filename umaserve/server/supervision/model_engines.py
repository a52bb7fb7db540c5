"""Engines of one model: those that run, and the one that takes new requests."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import trio

from umaserve.config import Config
from umaserve.models import needs as memory
from umaserve.models.gguf.header import GGUFError
from umaserve.models.identity import ModelIdentity
from umaserve.models.projector import projector_of
from umaserve.protocol import E_MODEL_002, ProtocolError
from umaserve.server.engines.handle import Callbacks, EngineHandle
from umaserve.server.engines.loop_lock import LoopLock
from umaserve.server.engines.model_watch import watch_file
from umaserve.server.engines.slow_files import ask_file, needs_of
from umaserve.server.engines.start.model_start import start_message, why_not_served
from umaserve.server.engines.start.next_try import NextTry
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.service import DEFAULT, Service
from umaserve.server.requests.sessions import Sessions
from umaserve.system.own_python import run_module
from umaserve.wire import messages as m

ENGINE_COMMAND = tuple(run_module("umaserve.engine"))


class Machine(NamedTuple):
    """Parts that the supervisors of all models share.

    ``make_room`` waits until a model fits beside the others; it raises ``ProtocolError``
    (``E_MODEL_002``) where it never will.
    """

    sessions: Sessions
    meters: Meters
    log: Callable[..., None]
    make_room: Callable[[ModelEngines, memory.ModelFile], Awaitable[None]]
    fits: Callable[[int], bool]  # whether so many bytes are free beside all engines
    command: Sequence[str]  # that starts an engine
    loop_lock: LoopLock


class ModelEngines(abc.ABC):
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
        self.log = machine.log
        self.fits = machine.fits
        self._machine = machine
        self.nursery: trio.Nursery
        self.next_try: NextTry | None = None  # of a model that cannot be served now
        self.need_bytes = 0  # of the newest model file
        self.kept_bytes = 0  # of engines that died and are about to be started again
        self.has_served = False  # an engine has been ready once
        self.is_changing = False  # a load or an unload runs
        self.is_stopping = False
        # of the newest model, as far as that is known
        self.positions = 0  # tokens that one session holds
        self.sees = bool(projector_of(self.config.mmproj, self.config.model))

    @property
    def current(self) -> EngineHandle | None:
        """The engine that takes new requests."""
        return self.service.engine

    async def prepare(self, path: str, config: Config) -> m.Start:
        """Return the start message for a model file, once it fits where no engine serves.

        Raises ``ProtocolError`` (``E_MODEL_002``).
        """
        role = self.service.given_role
        try:
            file = await ask_file(memory.look_at, path)
            need = await needs_of(file, config, role)
        except GGUFError as error:
            raise ProtocolError(E_MODEL_002, str(error)) from None
        if refusal := why_not_served(file, config):
            raise ProtocolError(E_MODEL_002, refusal)
        if self.current is None:
            await self._machine.make_room(self, file)
        need = need if self.fits(need.n_bytes) else need.least
        self.need_bytes = need.n_bytes
        return start_message(config, file, role, need)

    @abc.abstractmethod
    async def tend(self, engine: EngineHandle) -> None:
        """The whole life of one engine, and what follows from its end."""

    @abc.abstractmethod
    def wake(self) -> None:
        """Start an engine if the model is asleep."""

    @abc.abstractmethod
    def on_message(self, engine: EngineHandle, message: m.ToFront) -> None:
        """Take a message of one of these engines."""

    def begin(self, start: m.Start, known: ModelIdentity | None = None) -> None:
        """Make a new engine the current one; ``known``: of the model that was served before."""
        self.service.engine = self.spawn(start)
        self.service.engine.identity = known
        self.positions, self.sees = start.positions, bool(start.mmproj)

    def spawn(self, start: m.Start) -> EngineHandle:
        """Start an engine beside those that there are."""
        reader = self.sessions.reader
        engine = EngineHandle(
            start,
            self._machine.command,
            Callbacks(self.on_message, reader.on_tokens, reader.on_wake, self.log),
            loop_lock=self._machine.loop_lock,
            hang_floor_s=self.config.hang_timeout_s,
            service=self.service.number,
        )
        engine.need_bytes = self.need_bytes
        self.engines.append(engine)
        self.nursery.start_soon(self.tend, engine)
        if start.use_mmap:  # weights that were read do not change with the file
            self.nursery.start_soon(watch_file, engine, self.log)
        return engine

    def tell_model(self, ready: m.Ready | None) -> None:
        """Make the model known by what its file tells; ``None``: no file is loaded."""
        if ready is not None and self.current is not None:
            self.service.file_role = ready.role
            self.positions = min(ready.n_positions, self.current.start.positions)
            self.sees = not ready.why_no_eyes
        names = () if ready is None else (ready.model_name, ready.model_path)
        self.sessions.services.serves(self.service, *names)
        if self.service.number == DEFAULT:
            model = ""
            if ready is not None:  # by its file and what this holds
                digest = ready.identity.digest if ready.identity is not None else ""
                model = f"{digest} {ready.model_path}"
            self.sessions.reader.count(self.meters.serves, model)
