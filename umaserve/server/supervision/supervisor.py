"""Keeps a model served: starts its engine, replaces it when it dies or hangs, changes the model.

One engine of a model is *current*: it takes new requests.  A load starts a *candidate* next to it,
which becomes current when it has proved itself.  The old one is then *retiring* and ends what it
runs.  A dead current engine is replaced at once, and ``recovery.recover`` queues its requests
again (`Replacements`).  A model may be *asleep*: it has no engine, and its next request starts one.
"""

from __future__ import annotations

import contextlib

from umaserve.config import Config
from umaserve.model_settings import ModelSettings
from umaserve.models import needs as memory
from umaserve.models.gguf.header import GGUFError
from umaserve.protocol import E_LIMIT_002, E_MODEL_002, STOPPING, ProtocolError
from umaserve.server.engines import blame
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.engines.slow_files import ask_file, needs_of
from umaserve.server.engines.start.model_start import Need, start_message
from umaserve.server.requests.service import Service
from umaserve.server.supervision.model_changes import UNLOADED, ModelChanges
from umaserve.server.supervision.model_engines import Machine, ModelEngines
from umaserve.server.supervision.recovery import end_those_of_another_model, recover
from umaserve.server.supervision.replacements import Replacements
from umaserve.wire import messages as m


class Supervisor(ModelEngines):
    """Supervisor of one model, from the start of the daemon to its end.

    ``settings`` are the model's own among those of ``config``.
    """

    def __init__(
        self, config: Config, settings: ModelSettings, service: Service, machine: Machine
    ) -> None:
        super().__init__(config, service, machine)
        self.settings = settings
        self.changes = ModelChanges(self)
        self.replacements = Replacements(self)
        self.is_waking = False  # an engine is about to be started for a model that was asleep
        service.wake = self.wake

    # --- start and end ----------------------------------------------------------------------------

    async def start(self, model: memory.ModelFile) -> None:
        """Start the first engine of a model that does not wait for its first request."""
        try:
            need = await needs_of(model, self.config, self.service.given_role)
        except GGUFError:  # of a file that goes with the model: the engine says why
            need = Need(0)
        self.need_bytes = need.n_bytes
        self.begin(start_message(self.config, model, self.service.given_role, need))

    async def learn_role(self) -> None:
        """Find out from its file what a model that is not loaded is for."""
        with contextlib.suppress(GGUFError):  # its first request says what is wrong
            file = await ask_file(memory.look_at, self.config.model)
            self.service.file_role = self.service.file_role or file.role

    async def tend(self, engine: EngineHandle) -> None:
        try:
            exit = await engine.run()
        finally:
            self.engines.remove(engine)
        recover(self.sessions, engine, exit)
        if exit.kind == blame.ASKED or self.is_stopping:
            why = (E_LIMIT_002, STOPPING) if self.is_stopping else UNLOADED
            self.sessions.ends.refuse(engine.backlog.values(), *why)
        elif engine is self.current or engine.backlog:
            await self.replacements.replace(engine, exit)

    def on_message(self, engine: EngineHandle, message: m.ToFront) -> None:
        if isinstance(message, m.Ready):
            again = engine.replaces and engine is self.current
            text = f"engine {engine.pid} is ready after {message.start_ms:.0f} ms"
            self.log("info" if again else "debug", f"serving again: {text}" if again else text)
            if engine is self.current:
                self.has_served = True
                self.replacements.served_again()
                self.tell_model(message)
            end_those_of_another_model(self.sessions, engine)
            self.sessions.prompts.check_template(engine)
            self.sessions.rows.pump(engine)
        else:
            self.sessions.on_message(engine, message)

    # --- sleep ------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether it has an engine that nobody uses, so that it may sleep."""
        engine = self.current
        if engine is None or engine.ready is None or self.is_changing or self.is_waking:
            return False
        if self.service.asking or len(self.service.room):
            return False
        return not (engine.requests or engine.backlog or engine.asked)

    def wake(self) -> None:
        is_asleep = self.current is None and self.service.closed is None
        if is_asleep and not (self.is_waking or self.is_changing or self.is_stopping):
            self.is_waking = True
            self.nursery.start_soon(self._wake)

    async def _wake(self) -> None:
        try:
            for engine in list(self.engines):  # that it had before it fell asleep
                await engine.exited.wait()
            start = await self.prepare(self.config.model, self.config)
            if self.current is None and not self.is_stopping:
                self.begin(start)
        except ProtocolError as error:
            text = error.message
            self.failure = text
            self.log("error", text)
            self.sessions.refuse_queued(E_MODEL_002, text, self.service)
        finally:
            self.is_waking = False

    async def sleep(self) -> None:
        """End the engine of an idle model; its next request starts another one."""
        engine = self.current
        if engine is not None and self.is_idle:
            self.service.engine = None
            await engine.stop()
