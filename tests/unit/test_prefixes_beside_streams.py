"""What saving a text costs streams: where copies are slow, nothing is saved beside them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from umaserve.engine.prefixes.saving import Saver
from umaserve.policy.cost.model import CostModel, learn
from umaserve.wire import table as t


@pytest.mark.parametrize(
    ("copy_ms", "streams", "at_end", "while_it_runs"),
    [
        (3.0, True, False, False),
        (3.0, False, True, False),
        (1.0, True, True, True),  # a slow accelerator: computing takes 20 ms
        (0.0, True, True, True),  # a processor's copies are cheap
    ],
)
def test_a_text_is_saved_where_it_delays_no_stream(
    copy_ms: float, streams: bool, at_end: bool, while_it_runs: bool
) -> None:
    saved: list[int] = []
    table = SimpleNamespace(
        n_past=np.array([500]), state=np.array([t.RUNNING]), isolate=np.array([0])
    )
    copies = SimpleNamespace(restore_ms=lambda tokens: copy_ms, cuts=True, step=100)
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
