"""Traces of programs, as the simulator plays them.

A trace is a JSON file: ``about``, and ``requests``.  A request has ``app`` (a number for each
program), ``prompt`` (tokens that no cache has), ``output`` (tokens), and ``at_ms``, or ``after``
(the number of a request) and ``wait_ms`` from its end on.  ``lane`` is a label, where it has one.
``sinks`` says whether it has to be background beside what else is there, on a processor; without
it, either will do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.sim_loads import BACKGROUND, INTERACTIVE, Load
from umaserve.wire.states import AUTO, LABELLED

FOLDER = Path(__file__).parents[1] / "policy" / "traces"
RECORDED = FOLDER / "recorded"
LANES = {"interactive": INTERACTIVE, "background": BACKGROUND}


@dataclass(frozen=True)
class Trace:
    about: str
    requests: list[dict[str, Any]]

    @classmethod
    def read(cls, name: str) -> Trace:
        return cls(**json.loads((FOLDER / f"{name}.json").read_text("utf-8")))

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

    def alone(self) -> Load:
        """The first request as if the others did not exist."""
        return Trace(self.about, self.requests[:1]).load()

    def sinking(self) -> dict[int, bool]:
        """By number of a request, whether it has to sink."""
        said = {i: request.get("sinks") for i, request in enumerate(self.requests)}
        return {i: bool(sinks) for i, sinks in said.items() if sinks is not None}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))
