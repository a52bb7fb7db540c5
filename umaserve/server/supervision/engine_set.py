"""The models of a daemon: a supervisor for each, and the memory that they share.

A model is loaded when it is first asked for; the default one, and those that are pinned, at start.
Where the next one does not fit, idle ones leave: first the model whose last use is longest ago,
relative to its time of loading.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import trio

from umaserve.config import Config
from umaserve.model_settings import ModelSettings
from umaserve.models import needs as memory
from umaserve.models.needs import gib
from umaserve.protocol import E_MODEL_001, E_MODEL_002, E_PROTO_003, ProtocolError
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.engines.loop_lock import LoopLock
from umaserve.server.engines.slow_files import needs_of
from umaserve.server.engines.start.model_start import fits_beside
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.service import DEFAULT, Service, plain
from umaserve.server.requests.sessions import Sessions
from umaserve.server.supervision.model_changes import Report, wait_ready
from umaserve.server.supervision.model_engines import ENGINE_COMMAND, Machine, ModelEngines
from umaserve.server.supervision.models_index import ModelsIndex
from umaserve.server.supervision.neighbours import tell_neighbours
from umaserve.server.supervision.supervisor import Supervisor
from umaserve.wire.messages import Ready

ROOM_POLL_S = 0.1  # between two looks whether a model became idle
IDLE_LOOK_S, IDLE_LOOK_MOST_S = 1.0, 60.0  # between two looks whether a model is to leave


class EngineSet:
    """Supervisors of all models, and the memory that these share.

    ``all`` has the supervisors by the numbers of their services, the default model's first.
    ``engines`` are the processes of all models.
    """

    def __init__(
        self,
        config: Config, sessions: Sessions, meters: Meters, log: Callable[..., None],
        command: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.sessions = sessions
        command = tuple(command or ENGINE_COMMAND)
        self._machine = Machine(
            sessions, meters, log, self._make_room, self._fits, command, LoopLock()
        )
        self._log = log
        self._room = trio.Lock()  # one model at a time finds out whether it fits
        self._index = ModelsIndex(config.model_dir)
        self._nursery: trio.Nursery
        self.all: list[Supervisor] = []
        first = config.models.get(config.default_model)
        self._add(sessions.services.default, first or ModelSettings(config.model))
        for name, settings in config.models.items():
            if name == config.default_model:
                sessions.services.default.name = name
                sessions.services.know(sessions.services.default, name)
            else:
                self._add(sessions.services.add(name), settings._replace(lora=settings.lora or ()))
        self._several = len(self.all) > 1  # whatever is asked for later

    def _add(self, service: Service, settings: ModelSettings) -> None:
        service.given_role = settings.role
        self.sessions.services.know(service, *settings.aliases)
        if service.number != DEFAULT and not self.config.load_on_demand:
            text = f"{service.name} is not loaded; `umaserve load {service.name}` loads it"
            service.closed = (E_MODEL_001, text)
        own = config_of(self.config, settings)
        self.all.append(Supervisor(own, settings, service, self._machine))

    @property
    def default(self) -> Supervisor:
        return self.all[DEFAULT]

    @property
    def current(self) -> EngineHandle | None:
        """The engine of the default model that takes new requests."""
        return self.default.current

    @property
    def engines(self) -> list[EngineHandle]:
        return [engine for each in self.all for engine in each.engines]

    @property
    def sees(self) -> bool:
        """Whether a model may read pictures."""
        return any(each.sees for each in self.all)

    @property
    def positions(self) -> int:
        """Tokens that one session holds, as far as that is known, of the model that holds most."""
        return max(each.positions for each in self.all)

    def named(self, name: str | None) -> Supervisor:
        """The supervisor of a model that is configured or served; ``None`` is the default.

        Raises ``ProtocolError`` (``E_PROTO_003``) for a name that no model has.
        """
        if name is None:
            return self.default
        service = self.sessions.services.named(name)
        if service is None:
            known = ", ".join(each.label for each in self.sessions.services if each.label)
            raise ProtocolError(E_PROTO_003, f'"model" names no model here; there are: {known}')
        return self.all[service.number]

    # --- start and end ----------------------------------------------------------------------------

    async def run(
        self, model: memory.ModelFile, *, task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Start the default model with this file, and keep the models served until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for each in self.all:
                each.nursery = nursery
            await self.default.start(model)
            for each in self.all[1:]:
                nursery.start_soon(each.learn_role)
            for each in self.all:
                if each.settings.pin:
                    each.service.closed = None
                    each.wake()
            nursery.start_soon(self._let_idle_ones_leave)
            nursery.start_soon(tell_neighbours, lambda: self.engines)
            if self.config.load_on_demand:
                nursery.start_soon(self._index.read)
                self.sessions.services.on_unknown = self._on_this_machine
            task_status.started()
            await trio.sleep_forever()

    def begin_stop(self) -> None:
        """Start no engine any more, and end each that loads and has no request."""
        for supervisor in self.all:
            supervisor.is_stopping = True
        for engine in self.engines:
            if engine.ready is None and not engine.backlog:
                engine.kill()

    async def stop(self) -> None:
        """Stop every engine, after `begin_stop`; ``Sessions`` has been drained before."""
        async with trio.open_nursery() as nursery:
            for engine in self.engines:
                nursery.start_soon(engine.stop)

    # --- memory -----------------------------------------------------------------------------------

    async def _make_room(self, asker: ModelEngines, file: memory.ModelFile) -> None:
        """Wait until ``file`` fits beside the loaded models; idle ones leave for its least need.
        Raises ``ProtocolError`` (``E_MODEL_002``) where the pinned models alone leave no room."""
        need = (await needs_of(file, asker.config, asker.service.given_role)).least.n_bytes
        most = self.config.models_memory
        if 0 < most < need:
            text = f"{file.path} needs about {gib(need)}; --models-memory is {gib(most)}"
            raise ProtocolError(E_MODEL_002, text)
        async with self._room:
            told = False
            while not self._fits(need):
                leaving = self._least_used(asker)
                if leaving is not None:
                    name = leaving.service.label
                    self._log("info", f"{name} leaves memory: {asker.service.label} needs room")
                    await leaving.sleep()
                elif loaded := [each for each in self.all if each is not asker and each.current]:
                    if all(each.settings.pin for each in loaded):
                        text = f"{asker.service.label} needs about {gib(need)}, which is not free"
                        raise ProtocolError(E_MODEL_002, f"{text} beside the pinned models")
                    if not told:
                        text = f"{asker.service.label} waits until another model is idle"
                        self._log("info", f"{text}: it needs about {gib(need)}")
                    told = True
                    await trio.sleep(ROOM_POLL_S)
                else:
                    return  # nothing is left to leave: the engine itself says what is too little

    def _fits(self, need: int) -> bool:
        """Whether so many bytes are free beside the engines that there are."""
        kept = sum(each.kept_bytes for each in self.all)
        return fits_beside(need + kept, self.engines, self.config.models_memory)

    def _least_used(self, asker: ModelEngines) -> Supervisor | None:
        """Return the idle model that was used longest ago, relative to its time of loading."""
        loaded = [each for each in self.all if each is not asker and not each.settings.pin]
        idle = [each for each in loaded if each.is_idle]
        now_s = time.monotonic()
        return max(idle, key=lambda each: _idleness(each, now_s), default=None)

    def _ttl_s(self, supervisor: Supervisor) -> float:
        """Seconds without a request after which a model leaves; 0 = never."""
        settings, idle_s = supervisor.settings, self.config.idle_unload_s
        if settings.pin or settings.ttl_s is not None:
            return 0.0 if settings.pin else settings.ttl_s or 0.0
        leaves = self._several or supervisor.service.number != DEFAULT
        return idle_s if idle_s >= 0 else 900.0 * leaves

    async def _let_idle_ones_leave(self) -> None:
        while True:
            now_s = time.monotonic()
            # of a model that wakes, or is added, meanwhile
            due_s = [now_s + (self._ttl_s(each) or IDLE_LOOK_MOST_S) for each in self.all]
            due_s.append(now_s + IDLE_LOOK_MOST_S)
            for each in self.all:
                ttl_s = self._ttl_s(each)
                if not ttl_s or each.current is None:
                    continue
                at_s = each.service.used_s + ttl_s
                if at_s <= now_s and each.is_idle:
                    self._log("info", f"{each.service.label} leaves memory: nobody asked for it")
                    await each.sleep()
                due_s.append(max(at_s, now_s))
            await trio.sleep(max(min(due_s) - now_s, IDLE_LOOK_S))

    # --- by name ----------------------------------------------------------------------------------

    def _on_this_machine(self, name: str) -> Service | None:
        """The model of that name that lies on this machine, from now on one of the set."""
        path = self._index.paths.get(plain(name))
        if path is None:
            if self._index.is_old:
                self._nursery.start_soon(self._index.read)
            return None
        services = self.sessions.services
        for each in self.all:
            if each.config.model == path:
                services.know(each.service, name)
                return each.service
        self._add(service := services.add(name), ModelSettings(path, lora=()))
        self.all[-1].nursery = self._nursery
        self._nursery.start_soon(self.all[-1].learn_role)
        self._log("info", f"{name} is asked for: {path}")
        return service

    async def engine(self, service: Service) -> EngineHandle:
        """Return the engine of a model; a model that is asleep gets one first.

        Raises ``ProtocolError`` where it cannot be had.
        """
        supervisor = self.all[service.number]
        service.used_s = time.monotonic()
        was_woken = False
        while service.engine is None:
            refusal = self.sessions.closed or service.closed
            if was_woken and not (supervisor.is_waking or supervisor.is_changing):
                refusal = refusal or (E_MODEL_002, supervisor.failure)
            if refusal is not None:
                raise ProtocolError(*refusal)
            supervisor.wake()
            was_woken = True
            await trio.sleep(ROOM_POLL_S)
        return service.engine

    async def load(self, model: str, report: Report) -> Ready:
        """Load a configured model beside the others, or another file in the default's place.

        Raises ``ProtocolError`` (``E_MODEL_002``).
        """
        service = self.sessions.services.named(model)
        if service is None:
            return await self.default.changes.load(model, report)
        if service is self.default.service:
            path = model if os.path.isabs(model) else self.default.config.model
            return await self.default.changes.load(path, report)
        service.closed = None
        return await wait_ready(await self.engine(service), report)


def config_of(config: Config, settings: ModelSettings) -> Config:
    """Return the daemon's settings, with those that a model has of its own."""
    own: dict[str, Any] = {"model": settings.path}
    for name in ("n_ctx", "n_seq", "draft_model", "mmproj", "lora"):
        if (value := getattr(settings, name)) is not None:
            own[name] = value
    if settings.kv_type is not None:
        own["kv_type_k"], own["kv_type_v"] = settings.kv_type
    return replace(config, **own)


def _idleness(supervisor: Supervisor, now_s: float) -> float:
    engine = supervisor.current
    load_ms = engine.ready.load_ms if engine is not None and engine.ready is not None else 0.0
    return (now_s - supervisor.service.used_s) / max(load_ms, 1.0)
