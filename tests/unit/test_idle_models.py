"""When idle models leave memory, by a clock of the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from umaserve.config import Config
from umaserve.model_settings import ModelSettings
from umaserve.server.supervision import engine_set as module
from umaserve.server.supervision.engine_set import EngineSet


class Model:
    """A supervisor as far as idle models are concerned; it counts the times that it slept."""

    def __init__(self, number: int, settings: ModelSettings) -> None:
        self.settings = settings
        self.service = SimpleNamespace(number=number, label=f"m{number}", used_s=0.0)
        self.current: object | None = object()
        self.is_idle = True
        self.slept_at: list[float] = []

    async def sleep(self) -> None:
        self.current = None
        self.slept_at.append(trio.current_time())


def left_by(
    monkeypatch: pytest.MonkeyPatch, settings: list[ModelSettings], until_s: float,
    configured: int = 2, **config: Any,
) -> list[Model]:  # fmt: skip
    """Models after so many seconds in which nobody asked for one; ``configured`` at the start."""
    models = [Model(number, own) for number, own in enumerate(settings)]
    these = object.__new__(EngineSet)
    these.config = Config(**config)
    these.all = models  # type: ignore[assignment]
    these._several = min(configured, len(models)) > 1
    these._log = lambda *_: None

    async def run() -> None:
        start_s = trio.current_time()
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=lambda: trio.current_time() - start_s)
        )
        with trio.move_on_after(until_s):
            await these._let_idle_ones_leave()
        for model in models:
            model.slept_at = [round(at - start_s, 3) for at in model.slept_at]

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    return models


PLAIN = ModelSettings("x.gguf")


def test_with_several_models_each_leaves_after_a_quarter_of_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = left_by(monkeypatch, [PLAIN, PLAIN], 2000.0)
    assert first.slept_at == second.slept_at == [900.0]
    assert all(not each.slept_at for each in left_by(monkeypatch, [PLAIN, PLAIN], 899.0))


def test_one_model_alone_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    (only,) = left_by(monkeypatch, [PLAIN], 100_000.0)
    assert not only.slept_at


def test_what_is_set_goes_first_and_a_pinned_model_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [PLAIN, PLAIN._replace(ttl_s=30.0), PLAIN._replace(ttl_s=0.0)]
    settings.append(PLAIN._replace(ttl_s=30.0, pin=True))
    models = left_by(monkeypatch, settings, 5000.0, idle_unload_s=120.0)
    assert [each.slept_at for each in models] == [[120.0], [30.0], [], []]
    never = left_by(monkeypatch, [PLAIN, PLAIN], 100_000.0, idle_unload_s=0.0)
    assert all(not each.slept_at for each in never)
    (only,) = left_by(monkeypatch, [PLAIN], 5000.0, idle_unload_s=60.0)
    assert only.slept_at == [60.0]


def test_the_only_configured_model_stays_whatever_else_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, asked_for = left_by(monkeypatch, [PLAIN, PLAIN], 2000.0, configured=1)
    assert not first.slept_at and len(asked_for.slept_at) == 1
