"""Eviction rules of the prefix cache: the one that is used, and that another takes its place."""

from __future__ import annotations

import numpy as np
import pytest

from umaserve.cache.entry import Entry
from umaserve.cache.rule import GreedyDualSize
from umaserve.cache.tree import PrefixTree
from umaserve.cache.whole import WholeTexts

SIZE = 1 << 10


class Oldest:
    """The entry that was needed longest ago goes first, whatever it costs."""

    def __init__(self) -> None:
        self._needed = 0
        self.gone: list[Entry] = []

    def worth(self, entry: Entry, lease: float) -> float:
        self._needed += 1
        return float(self._needed)

    def evicted(self, entry: Entry) -> None:
        self.gone.append(entry)


def text(first: int) -> np.ndarray:
    return np.arange(first, first + 16, dtype=np.int32)


@pytest.mark.parametrize("kind", [PrefixTree, WholeTexts])
def test_a_store_goes_by_its_rule(kind: type[PrefixTree] | type[WholeTexts]) -> None:
    rule, left = Oldest(), []
    for store in (kind(3 * SIZE, rule), kind(3 * SIZE)):
        for first, cost_ms in ((0, 9.0), (100, 1.0), (200, 5.0)):
            assert store.add("a", text(first), 0, np.zeros(SIZE - 64, np.uint8), cost_ms)
        assert store.add("a", text(300), 0, np.zeros(SIZE - 64, np.uint8), 5.0)
        left.append({int(entry.tokens[0]) for entry in store.entries("a")})
    oldest, cheapest = left
    assert 0 not in oldest and 300 in oldest
    assert 100 not in cheapest and cheapest >= {0, 300}
    assert int(rule.gone[0].tokens[0]) == 0


def test_a_lease_and_an_eviction_count() -> None:
    rule = GreedyDualSize()
    dear = Entry(text(0), 0, np.zeros(SIZE - 64, np.uint8), None, 8.0)
    assert rule.worth(dear, 4.0) == 4.0 * rule.worth(dear, 1.0) > 0.0
    dear.worth = before = rule.worth(dear, 1.0)
    rule.evicted(dear)
    assert rule.worth(dear, 1.0) == 2 * before
