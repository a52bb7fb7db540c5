"""Turns of rows with different adapters: nobody starves, and a row that pauses is not fed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from umaserve.engine.model.adapters import domain_of
from umaserve.engine.seats import turns as module
from umaserve.engine.seats.turns import TICKS, AdapterTurns
from umaserve.llama.adapters import Adapters
from umaserve.server.figures.cache_report import _whose
from umaserve.wire import messages as m
from umaserve.wire.states import DONE, NOT_FED, RUNNING

HOME, X, Y = (0.0, 0.0), (1.0, 0.0), (0.0, 1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    yield now


def turns_of(*sets: tuple[float, ...]) -> tuple[AdapterTurns, Any, Any]:
    """Turns with a running row of each set, what the ticks feed, and the table."""
    n = len(sets)
    table = SimpleNamespace(
        state=np.full(n, RUNNING), lane=np.zeros(n, int), n_past=np.full(n, 9),
        n_tokens=np.full(n, 10),
    )  # fmt: skip
    aside: Any = np.zeros(n, np.int32)
    loaded = SimpleNamespace(adapters=Adapters(None, (), HOME), context=None)
    setup: Any = SimpleNamespace(table=table, loaded=loaded)
    nothing: Any = SimpleNamespace(unlike=0, reclaim=lambda slot: None)
    turns = AdapterTurns(setup, aside, nothing, nothing)
    for slot, scales in enumerate(sets):
        turns._of[slot] = scales
        turns.begin(slot)
    return turns, aside, table


def test_short_requests_of_other_sets_do_not_starve_a_stream(clock: list[float]) -> None:
    """Each of theirs ends with its turn, and the next one begins at once."""
    turns, aside, table = turns_of(HOME, X, Y)
    fed = [0, 0, 0]
    for _ in range(300):
        turns.step()
        (slot,) = np.flatnonzero(aside != NOT_FED)
        fed[slot] += 1
        clock[0] += 0.25
        if slot:
            table.state[slot] = DONE
            turns.step()
            table.state[slot] = RUNNING
            turns.begin(slot)
    assert min(fed) >= 75, fed


def test_a_row_that_pauses_stays_so_whoever_writes_its_column(clock: list[float]) -> None:
    turns, aside, table = turns_of(HOME, X)
    turns.step()
    (paused,) = np.flatnonzero(aside == NOT_FED)
    aside[:] = 0
    turns.step()
    assert aside[paused] == NOT_FED and aside[1 - paused] == 0


def test_a_turn_with_a_prompt_is_looked_at_after_each_tick(clock: list[float]) -> None:
    turns, aside, table = turns_of(HOME, X)
    turns.step()
    (paused,) = np.flatnonzero(aside == NOT_FED)
    assert turns.ticks(100) == TICKS
    table.n_tokens[paused] = 500
    assert turns.ticks(100) == TICKS
    table.n_tokens[1 - paused] = 500
    assert turns.ticks(100) == 1
    turns, _, _ = turns_of(HOME, HOME)
    turns.step()
    assert turns.ticks(100) == 100


def test_whose_texts_they_are_is_told_without_the_adapters() -> None:
    for domain in ("", "key", f"key{m.PRIVATE}chat", f"key{m.PRIVATE}lora"):
        found = domain_of(domain, ("a", "b"), X)
        assert found not in (None, domain) and _whose(str(found)) == _whose(domain)
    assert domain_of("key", ("a", "b"), HOME) == "key"
