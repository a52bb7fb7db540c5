"""Log-probabilities of a row of logits: of one token, and of the likeliest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class RowLogprobs(NamedTuple):
    """``logprob`` of the token asked about; ``top`` are (id, logprob), most likely first."""

    logprob: float
    top: list[tuple[int, float]]


def row_logprobs(row: np.ndarray, token: int, count: int) -> RowLogprobs:
    """Log-probabilities (natural) of ``token`` and of the ``count`` likeliest tokens.

    ``row``: logits, float32[n_vocab].  NaN where the logits are no numbers.
    """
    largest = row.max()
    total = float(np.log(np.exp(row - largest).sum(dtype=np.float64))) + float(largest)
    return RowLogprobs(
        float(row[token]) - total, [(i, float(row[i]) - total) for i in _likeliest(row, count)]
    )


def _likeliest(row: np.ndarray, count: int) -> list[int]:
    """Ids of the largest logits; of equal ones the smaller id goes first."""
    if count == 0:
        return []
    if count == 1:
        return [int(row.argmax())]
    found = np.argpartition(row, -count)[-count:] if count < row.size else np.arange(row.size)
    return sorted(found.tolist(), key=lambda i: (-float(row[i]), i))
