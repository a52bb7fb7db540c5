"""The engine as its parts see it.

The engine knows its parts, and they know this: no import goes round in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from umaserve.engine.cells.sequences import Sequences
from umaserve.engine.constraints.constraints import Constraints
from umaserve.engine.model.cost_keeper import CostKeeper
from umaserve.engine.model.loaded import Loaded
from umaserve.engine.model.ways import Ways
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill.ready_graph import ReadyGraph
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.engine.samplers.first_token import FirstToken, FirstTokens
from umaserve.policy.base import Knobs, Memory, SchedulerState
from umaserve.policy.bytes.bandwidth import Budget
from umaserve.policy.cost.model import CostModel
from umaserve.sampling.params import SamplerTable
from umaserve.sampling.sampler import Scratch
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.control import Control


class Work(Protocol):
    """Arrays of the compiled ticks; they say what each holds."""

    @property
    def addresses(self) -> np.ndarray: ...

    @property
    def flight(self) -> Flight: ...

    @property
    def facts(self) -> np.ndarray: ...


class Flight(Protocol):
    mode: int
    unlike: int
    parity: int
    apart: int


class Suspects(Protocol):
    @property
    def wanted(self) -> bool: ...

    def go_on(self) -> bool: ...

    def accuse(self, slots: Iterable[int]) -> None: ...


class Apart(Protocol):
    def close(self) -> None: ...


class Seats(Protocol):
    @property
    def apart(self) -> Apart: ...

    def free_held(self) -> None: ...

    def admit(self, under_way: bool = False) -> bool: ...

    def place(self, slot: int) -> None: ...

    def park(self, slot: int, keep: bool = True) -> None: ...

    def park_all(self, slots: list[int]) -> None: ...

    def end(self, slot: int, reason: int, empty: bool = False) -> None: ...

    def somebody_decodes(self, is_paused: Callable[[int], bool] | None = None) -> bool: ...


class Turns(Protocol):
    @property
    def is_on(self) -> bool: ...

    def begin(self, slot: int) -> None: ...

    def scales(self, slot: int) -> tuple[float, ...]: ...

    def is_paused(self, slot: int) -> bool: ...


class Looks(Protocol):
    def has(self, slot: int) -> bool: ...

    def last_position(self, slot: int, n: int) -> int: ...

    def chunk(self, past: int, most: int) -> int: ...


class Aside(Protocol):
    @property
    def has_jobs(self) -> bool: ...

    def compile(self) -> None: ...


class Settles(Protocol):
    def settle_first(self, first: FirstToken) -> None: ...


class Admits(Protocol):
    resumed_at: np.ndarray  # int32[n_slots]: tokens of a row when it was filled
    constraints: Constraints

    def slot_of(self, serial: int) -> int: ...

    def take_tokenised(self) -> None: ...


class Whole(Protocol):
    """`umaserve.engine.loop.engine` has it, and says what each does."""

    start: m.Start
    loaded: Loaded
    table: t.SessionTable
    control: Control
    samplers: SamplerTable
    state: SchedulerState
    knobs: Knobs
    cost: CostModel
    memory: Memory
    cost_keeper: CostKeeper
    sequences: Sequences
    graph: ReadyGraph
    native: Native
    budget: Budget
    worker: PrefillWorker | None
    ways: Ways
    drafts: Any  # `umaserve.engine.drafting.records.Drafts`
    aside_threads: int
    later: list[m.ToEngine]
    ticks_done: int
    team_scratches: list[Scratch]

    def decode_failed(self, status: int, slots: np.ndarray) -> None: ...

    def remember_text(self, slot: int) -> None: ...

    @property
    def records(self) -> Sequence[Any]: ...

    @property
    def work(self) -> Work: ...

    @property
    def can_draft(self) -> bool: ...

    @property
    def trials(self) -> Suspects: ...

    @property
    def admission(self) -> Admits: ...

    @property
    def seats(self) -> Seats: ...

    @property
    def pictures(self) -> Looks: ...

    @property
    def turns(self) -> Turns: ...

    @property
    def landing(self) -> Settles: ...

    @property
    def aside(self) -> Aside: ...

    @property
    def columns(self) -> Any: ...

    def equip(self, ways: Ways) -> None: ...

    def arrange(self) -> None: ...

    def recall_costs(self) -> None: ...

    def first_tokens(self) -> FirstTokens: ...

    def handle(self, message: m.ToEngine) -> None: ...

    def tick(self, most: int = 1) -> bool: ...
