"""Models that are served: the engine that takes new requests of each, and those that wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from umaserve.server.engines.handle import EngineHandle
from umaserve.server.requests.queue.waiting import WaitingRoom
from umaserve.server.requests.request import Request

DEFAULT = 0  # number of the model that answers requests that name none


def plain(name: str) -> str:
    """Return a name in the form in which names are compared; Ollama's clients add a tag."""
    return name.strip().lower().removesuffix(":latest").removesuffix(".gguf")


class Service:
    """Requests of a model.

    ``engine`` takes new requests; where it is ``None``, or with ``holding``, they wait.  ``closed``
    is the code and the text of the refusal while no request is taken.  ``wake`` is called where a
    request waits and there is no engine.  ``used_s`` is the time at which the newest request came
    or ended (``time.monotonic()``).  ``asking`` counts questions that wait for an answer or for an
    engine.  ``given_role`` is what the configuration says that the model is for, ``file_role`` what
    its file tells.
    """

    def __init__(self, number: int, name: str, room: WaitingRoom) -> None:
        self.number = number
        self.name = name
        self.file_name = ""
        self.given_role = self.file_role = ""
        self.room = room
        self.engine: EngineHandle | None = None
        self.holding = False
        self.closed: tuple[str, str] | None = None
        self.wake: Callable[[], None] = lambda: None
        self.used_s = time.monotonic()
        self.asking = 0
        # scales of adapters for requests that name none; none: as configured
        self.lora: tuple[tuple[int, float], ...] = ()

    @property
    def role(self) -> str:
        return self.given_role or self.file_role

    def over(self, request: Request) -> None:
        """A request has ended."""
        self.room.over(request)
        self.used_s = time.monotonic()

    @property
    def label(self) -> str:
        """The name that people are told: the configured name, else that in the model's file, which
        is empty until the file was loaded."""
        return self.name or self.file_name


class Services:
    """Services by number and by name; ``make_room`` makes the waiting room of each."""

    def __init__(self, make_room: Callable[[], WaitingRoom]) -> None:
        self._make_room = make_room
        self._all: list[Service] = []
        self._names: dict[str, Service] = {}  # of the configuration; they go first
        self._of_files: dict[str, Service] = {}
        # asked for a name that no model has; who finds a model of that name adds it
        self.on_unknown: Callable[[str], Service | None] = lambda name: None
        self.default = self.add("")

    def __iter__(self) -> Iterator[Service]:
        return iter(self._all)

    def __getitem__(self, number: int) -> Service:
        return self._all[number]

    def add(self, name: str) -> Service:
        service = Service(len(self._all), name, self._make_room())
        self._all.append(service)
        if name:
            self.know(service, name)
        return service

    def know(self, service: Service, *names: str) -> None:
        """Find ``service`` by the names that the configuration gives it."""
        self._names |= dict.fromkeys(map(plain, names), service)

    def serves(self, service: Service, *names: str) -> None:
        """Find ``service`` by the names of the file that it serves now, instead of former names.

        The first is the name in the file itself.
        """
        service.file_name = names[0] if names else ""
        self._of_files = {name: each for name, each in self._of_files.items() if each != service}
        for name in names:
            for each in (name, os.path.basename(name)):
                self._of_files.setdefault(plain(each), service)

    def named(self, name: str) -> Service | None:
        wanted = plain(name)
        return self._names.get(wanted) or self._of_files.get(wanted)

    def find(self, name: str | None, role: str = "", key: str = "") -> Service:
        """The model of that name; else the first of the ``role``, or else the default.

        ``key``: the API key that asks.  A request without one may also name a model that is on
        this machine and is not configured.
        """
        found = self.named(name or "")
        if found is None and name and not key:
            found = self.on_unknown(name)
        if found is None and role:
            found = next((each for each in self._all if each.role == role), None)
        return found or self.default
