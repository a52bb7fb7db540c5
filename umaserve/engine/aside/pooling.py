"""The rows of a text's tokens to one vector, in the model's own way.

libllama can pool, but over what one ubatch holds.  A text that is computed in chunks is pooled
here, to the same numbers.
"""

from __future__ import annotations

import numpy as np

from umaserve.engine.model.pooling import LAST, MEAN


class Pool:
    """Takes rows of a text, chunk after chunk, and gives their vector."""

    def __init__(self, way: str, n_embd: int) -> None:
        self._way = way
        self._sum = np.zeros(n_embd, np.float64)
        self._rows = 0

    def wants(self, at: int, n: int, all_rows: int) -> bool:
        """Whether any of ``n`` rows from ``at`` on, of so many in all, counts."""
        return self._way == MEAN or (at + n == all_rows if self._way == LAST else at == 0)

    def clear(self) -> None:
        """The rows come once more."""
        self._sum[:] = 0.0
        self._rows = 0

    def take(self, rows: np.ndarray) -> None:
        """The next rows, float32[n, n_embd]; nothing of them is kept but numbers."""
        if self._way == MEAN:
            self._sum += rows.sum(axis=0, dtype=np.float64)
        elif self._way == LAST:
            self._sum[:] = rows[-1]
        elif self._rows == 0:
            self._sum[:] = rows[0]
        self._rows += len(rows)

    def vector(self) -> np.ndarray:
        """float32[n_embd] of length 1, owned by the caller; NaN where rows were no numbers."""
        return normalised(self._sum)


def normalised(vector: np.ndarray) -> np.ndarray:
    """float32 of length 1; of zeros, zeros."""
    wide = np.asarray(vector, np.float64)
    length = float(np.sqrt(np.dot(wide, wide)))
    return (wide / (length or 1.0)).astype(np.float32)
