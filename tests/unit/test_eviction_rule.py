"""The eviction rule of the prefix cache."""

from __future__ import annotations

import numpy as np
import pytest

from umaserve.cache.entry import Part
from umaserve.cache.tree import PrefixTree
from umaserve.cache.whole import WholeTexts

SIZE = 1 << 10


def text(first: int) -> np.ndarray:
    return np.arange(first, first + 16, dtype=np.int32)


@pytest.mark.parametrize("kind", [PrefixTree, WholeTexts])
def test_the_cheapest_goes_first(kind: type[PrefixTree] | type[WholeTexts]) -> None:
    store = kind(3 * SIZE)
    for first, cost_ms in ((0, 9.0), (100, 1.0), (200, 5.0)):
        assert store.add("a", text(first), 0, np.zeros(SIZE - 64, np.uint8), cost_ms)
    assert store.add("a", text(300), 0, np.zeros(SIZE - 64, np.uint8), 5.0)
    left = {int(entry.tokens[0]) for entry in store.entries("a")}
    assert 100 not in left and left >= {0, 300}


def test_a_lease_and_an_eviction_count() -> None:
    store = PrefixTree(SIZE)
    assert (dear := store.add("a", text(0), 0, np.zeros(SIZE - 64, np.uint8), 8.0))
    before = dear.worth
    assert before > 0.0
    store.use([Part(dear, dear.p1)], 4.0)
    assert dear.worth == 4.0 * before
    assert (other := store.add("a", text(100), 0, np.zeros(SIZE - 64, np.uint8), 8.0))
    assert dear.parent is None and other.worth == before
    store.use([Part(other, other.p1)])
    assert other.worth == 4.0 * before + before
