"""Life of a request in the front: its stages, its client's side, and every step between them.

A request is in a `Stage` and has an `Answer`, which are independent: an answer may have been told
while its row still runs.  ``NEXT`` is the table of all steps; `step` refuses any other.
docs/SYSTEM_DESIGN.md has its drawing: ``python -m tools.draw_life``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class Stage(Enum):
    """Where a request is."""

    WAITING = "waits for a row of the session table"
    RENDERING = "its messages become a prompt"
    SUBMITTED = "it has a row, which the engine has not filled yet"
    RUNNING = "the engine has filled its row"
    OVER = "it has no row and gets none"


class Answer(Enum):
    """State of a request's answer to its client."""

    OPEN = "tokens are delivered as they come"
    CANCELLED = "tokens are delivered until the row ends"
    PARSING = "the text has ended, and its message is made"
    TOLD = "the client has its last event, or is gone"
    BROKEN = "our own code failed on the request, and the client was told so"


NEXT: Mapping[Stage | Answer, frozenset[Stage | Answer]] = {
    Stage.WAITING: frozenset({Stage.WAITING, Stage.RENDERING, Stage.SUBMITTED, Stage.OVER}),
    Stage.RENDERING: frozenset({Stage.WAITING, Stage.OVER}),
    # back to WAITING: its engine died
    Stage.SUBMITTED: frozenset({Stage.RUNNING, Stage.WAITING, Stage.OVER}),
    # back to SUBMITTED: its full context is shifted
    Stage.RUNNING: frozenset({Stage.SUBMITTED, Stage.WAITING, Stage.OVER}),
    Stage.OVER: frozenset(),
    Answer.OPEN: frozenset({Answer.CANCELLED, Answer.PARSING, Answer.TOLD, Answer.BROKEN}),
    Answer.CANCELLED: frozenset({Answer.PARSING, Answer.TOLD, Answer.BROKEN}),
    Answer.PARSING: frozenset({Answer.TOLD, Answer.BROKEN}),
    Answer.TOLD: frozenset({Answer.BROKEN}),
    Answer.BROKEN: frozenset(),
}

State = TypeVar("State", Stage, Answer)


class ImpossibleStep(Exception):
    """A step that the table does not have: a fault in our own code."""


def step(now: State, to: State) -> State:
    """Return ``to``; raise `ImpossibleStep` where no step leads there from ``now``."""
    if to not in NEXT[now]:
        raise ImpossibleStep(f"{now.name} to {to.name}")
    return to
