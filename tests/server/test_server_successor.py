"""What an engine is told that takes the place of a dead one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from umaserve.server.supervisor import Supervisor
from umaserve.wire import messages as m

START = m.Start("model.gguf", n_slots=4, n_ctx=64, n_seq=2)


def again(ready: Any) -> m.Start:
    return Supervisor._start_again(SimpleNamespace(start=START, ready=ready))  # type: ignore[arg-type]


def test_it_keeps_the_threads_and_measures_nothing() -> None:
    """A measurement that ends the process would end the next one, for ever."""
    start = again(SimpleNamespace(n_threads=3, n_threads_batch=5))
    assert (start.n_threads, start.n_threads_batch, start.probe) == (3, 5, False)


def test_where_the_dead_one_was_never_ready_everything_is_as_it_was() -> None:
    assert again(None) == START
