"""What saving a text costs streams: background texts are not saved where copies are slow."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from umaserve.engine.prefixes.saving import Saver


@pytest.mark.parametrize(
    ("lane", "copy_ms", "streams", "saves"),
    [
        (1, 0.3, True, False),
        (1, 0.3, False, True),
        (1, 0.0, True, True),  # a processor's copies are cheap
        (0, 0.3, True, True),
    ],
)
def test_a_background_text_is_saved_where_it_delays_no_stream(
    lane: int, copy_ms: float, streams: bool, saves: bool
) -> None:
    saved: list[int] = []
    saver = object.__new__(Saver)
    saver.saved, saver._texts = {}, SimpleNamespace(domains={0: "a"})
    saver._table = SimpleNamespace(n_past=np.array([500]), lane=np.array([lane]))
    saver._copies = SimpleNamespace(restore_ms=lambda tokens: copy_ms)
    saver._save_one = saved.append
    saver.keep(0, at_once=not streams)
    assert bool(saved) == saves
