"""Traces of programs, as the simulator plays them.

A trace is a JSON file: ``about``, and ``requests``.  A request has ``app`` (a number for each
program), ``prompt`` (tokens that no cache has), ``output`` (tokens), and ``at_ms``, or ``after``
(the number of a request) and ``wait_ms`` from its end on.  ``lane`` is a label, where it has one.
``streams`` is false where the answer goes out as a whole.

Those in the folder ``recorded`` are what real programs asked for, each alone
(`tests.support.record_traces`).  ``programs`` are the names that they gave.  A request also has
what else was seen of it: ``cached`` tokens before ``prompt``, ``max_tokens``, how many ``tools`` it
may use and ``results`` it brings, ``thinking``, ``session``, and its ``kind``: ``turn``, ``aside``
(a title, another agent, a message for a commit), ``summary`` or ``bulk``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.sim_loads import BACKGROUND, INTERACTIVE, Load
from umaserve.wire.states import AUTO, LABELLED

FOLDER = Path(__file__).parents[1] / "policy" / "traces"
RECORDED = FOLDER / "recorded"
LEAD_MS = 500
LANES = {"interactive": INTERACTIVE, "background": BACKGROUND}


@dataclass(frozen=True)
class Trace:
    about: str
    requests: list[dict[str, Any]]
    programs: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, name: str, folder: Path = FOLDER) -> Trace:
        return cls(**json.loads((folder / f"{name}.json").read_text("utf-8")))

    def load(self) -> Load:
        """Its requests with the same numbers."""
        load = Load()
        for request in self.requests:
            label = request.get("lane")
            load.add(
                LANES.get(label or "", INTERACTIVE), request["prompt"], request["output"],
                request.get("at_ms", request.get("wait_ms", 0.0)), request.get("after", -1),
                auto=LABELLED if label else AUTO, program=request["app"],
            )  # fmt: skip
        return load

    def beside_a_chat(self, tokens: int) -> Trace:
        """The same behind a chat of another program that has begun before, and is read."""
        chat = {"app": 0, "at_ms": 0, "prompt": 60, "output": tokens}
        rest = []
        for request in self.requests:
            if "after" in request:
                request = {**request, "after": request["after"] + 1}
            else:
                request = {**request, "at_ms": request["at_ms"] + LEAD_MS}
            rest.append(request)
        return Trace(self.about, [chat, *rest], self.programs)

    def alone(self) -> Load:
        """The first request as if the others did not exist."""
        return Trace(self.about, self.requests[:1]).load()


def names(folder: Path = FOLDER) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.json"))
