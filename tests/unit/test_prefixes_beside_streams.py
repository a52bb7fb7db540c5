"""What saving a text costs streams: where copies are slow, nothing is saved beside them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from umaserve.cache.next_turn import Ended, NextTurns
from umaserve.engine.prefixes import late_texts
from umaserve.engine.prefixes.late_texts import Late, LateTexts, Text
from umaserve.engine.prefixes.saving import Saver
from umaserve.policy.cost.model import CostModel, learn
from umaserve.wire import table as t


@pytest.mark.parametrize(
    ("lane", "copy_ms", "streams", "at_end", "while_it_runs"),
    [
        (0, 3.0, True, False, False),
        (0, 3.0, False, True, False),
        (1, 3.0, False, True, True),  # nobody interactive runs, and it may be parked
        (0, 1.0, True, True, True),  # a slow accelerator: computing takes 20 ms
        (0, 0.0, True, True, True),  # a processor's copies are cheap
    ],
)
def test_a_text_is_saved_where_it_delays_no_stream(
    lane: int, copy_ms: float, streams: bool, at_end: bool, while_it_runs: bool
) -> None:
    saved: list[int] = []
    table = SimpleNamespace(
        n_past=np.array([500]), state=np.array([t.RUNNING]), isolate=np.array([0]),
        lane=np.array([lane]),
    )  # fmt: skip
    copies = SimpleNamespace(step_ms=copy_ms, cuts=True, step=100)
    texts = SimpleNamespace(domains={0: "a"})
    cost = CostModel.unknown()
    for _ in range(20):
        learn(cost, 0, 0, 100, 50.0, 20.0)
    saver = Saver(table, cost, copies, texts, None, None)  # type: ignore[arg-type]
    assert saver.is_busy == while_it_runs
    saver._save_one = saved.append  # type: ignore[method-assign,assignment]
    saver.save_running(at_once=not streams)
    assert bool(saved) == while_it_runs
    saved.clear()
    saver.keep(0, at_once=not streams)
    assert bool(saved) == at_end


def late_text(
    held: NextTurns, saved: list[int], in_background: bool = False, is_dear: bool = False,
    save_ms: float = 0.0,
) -> LateTexts:  # fmt: skip
    """Return late texts with one of 600 tokens, which sequence 1 holds."""
    tokens = np.arange(600, dtype=np.int32)
    ended = Ended("a", 0, tokens, 600, 0.0)
    held.hold(1, ended)
    late = LateTexts(held, lambda text: saved.append(text.seq) or 600, lambda text: save_ms)  # type: ignore[func-returns-value]
    text = Text("a", tokens, 1, 600, 1.0, is_shared=True)
    late.put(Late(ended, text, in_background, is_dear))
    late._next_s = 0.0
    return late


def test_a_look_that_may_save_nothing_is_a_look_all_the_same() -> None:
    """Else the engine would look again between any two ticks."""
    held, saved = NextTurns(), list[int]()
    late = late_text(held, saved)
    assert late.is_due
    late.step(saves=False)
    assert not late.is_due and late.is_left and not saved
    held.drop(1)  # its next turn has come
    late.step(saves=False)
    assert not late.is_left


@pytest.mark.parametrize("save_ms", [99.0, 101.0])
def test_a_copy_that_readers_would_mind_waits_for_a_pause(save_ms: float) -> None:
    saved: list[int] = []
    late = late_text(NextTurns(), saved, save_ms=save_ms)
    late.step(background=False)
    assert bool(saved) == (save_ms < 100.0)
    late.save_all()
    assert saved == [1] and not late.is_left


def test_copies_beside_streams_take_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(late_texts.time, "monotonic", lambda: now_s)

    def save(text: Text) -> int:
        nonlocal now_s
        now_s += 0.08
        return 100

    held = NextTurns()
    late = late_text(held, [])
    late._save = save
    late.step(background=False)
    now_s += 0.79
    assert not late.is_due
    now_s += 0.02
    assert late.is_due


@pytest.mark.parametrize(
    ("in_background", "is_dear", "beside_streams", "saves"),
    [(False, True, False, False), (True, False, True, False), (True, False, False, True),
     (False, False, True, True)],
)  # fmt: skip
def test_a_text_whose_cells_are_needed_is_saved_or_dropped(
    in_background: bool, is_dear: bool, beside_streams: bool, saves: bool
) -> None:
    saved: list[int] = []
    late = late_text(NextTurns(), saved, in_background, is_dear)
    late.let_go(1, beside_streams)
    assert bool(saved) == saves and not late.is_left
