"""What an engine is told that takes the place of a dead one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from umaserve.server.supervision.replacements import Replacements
from umaserve.wire import messages as m

START = m.Start("model.gguf", n_slots=4, n_ctx=64, n_seq=2)


def again(ready: Any, start: m.Start = START) -> m.Start:
    return Replacements.start_again(SimpleNamespace(start=start, ready=ready))  # type: ignore[arg-type]


def test_it_keeps_the_threads_and_measures_nothing() -> None:
    """A measurement that ends the process would end the next one, for ever."""
    start = again(SimpleNamespace(n_ctx=64, n_threads=3, n_threads_batch=5))
    assert (start.n_threads, start.n_threads_batch, start.probe) == (3, 5, False)


def test_it_has_the_room_that_the_dead_one_found() -> None:
    """Another amount of memory may be free now, but what ran was admitted to that room."""
    auto = m.Start("model.gguf", n_slots=4, n_ctx=0, n_positions=32, n_seq=2)
    start = again(SimpleNamespace(n_ctx=48, n_threads=1, n_threads_batch=1), auto)
    assert (start.n_ctx, start.positions) == (48, 32)


def test_where_the_dead_one_was_never_ready_everything_is_as_it_was() -> None:
    assert again(None) == START
