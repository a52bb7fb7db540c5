"""Contexts that nobody takes: their request was cancelled while they were being made."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from umaserve.engine.aside import kept_context
from umaserve.engine.aside.kept_context import KEEP_S, KeptContext


class Made:
    """What stands for a context: it is made once it may be, and notes that it is freed."""

    may = threading.Event()
    freed = 0

    def __init__(self, setup: Any, tokens: int, hooks: dict[str, Any]) -> None:
        assert self.may.wait(20)
        self.cells = tokens

    def close(self) -> None:
        Made.freed += 1


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptContext:
    monkeypatch.setattr(kept_context, "AsideContext", Made)
    monkeypatch.setattr(kept_context, "why_no_room", lambda *_: "")
    Made.may.clear()
    Made.freed = 0
    told = SimpleNamespace(loaded=None, control=SimpleNamespace(notify=lambda: None))
    out = KeptContext(told)  # type: ignore[arg-type]
    assert out.ready(100) is None and out.is_awaited
    return out


def test_a_context_that_nobody_takes_is_freed_after_a_while(kept: KeptContext) -> None:
    kept._used_s -= 2 * KEEP_S
    kept.free_unused()  # it is still being made
    assert kept.is_awaited and kept.idle_ms() is None
    Made.may.set()
    assert kept._thread is not None
    kept._thread.join()
    assert kept.idle_ms() == 1
    kept.free_unused()
    assert Made.freed == 1 and not kept.is_opening and kept.idle_ms() is None


def test_a_context_that_is_being_made_at_the_end_is_awaited_and_freed(kept: KeptContext) -> None:
    threading.Timer(0.05, Made.may.set).start()
    kept.close()
    assert Made.freed == 1 and not kept.is_opening
    assert kept.context is None
