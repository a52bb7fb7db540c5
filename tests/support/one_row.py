"""Rows for the samplers with one request in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from umaserve.sampling.params import SamplerTable
from umaserve.sampling.sampler import Rows


def one_row(
    table: SamplerTable, n_vocab: int, history: Sequence[int] | np.ndarray = (), index: int = 0,
    eog: Sequence[int] | np.ndarray = (), slot: int = 0,
) -> Rows:  # fmt: skip
    """Return rows in which ``slot`` has the tokens ``history``, ``index`` of them generated."""
    n, n_slots = len(history), slot + 1
    tokens = np.zeros((n_slots, n + 1), np.int32)
    tokens[slot, :n] = history
    return Rows(
        np.full(1, slot, np.int32), np.zeros(1, np.int64), n_vocab, table.settings, tokens,
        np.full(n_slots, n, np.int32), np.full(n_slots, n - index, np.int32),
        np.array(eog, np.int32), np.zeros(1, np.int32), np.zeros((n_slots, n + 1), np.float32),
        np.zeros((n_slots, n + 1, 20), np.int32), np.zeros((n_slots, n + 1, 20), np.float32),
    )  # fmt: skip
