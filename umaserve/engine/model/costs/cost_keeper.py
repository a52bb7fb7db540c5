"""When what ticks cost is written to its file, and by whom: a thread, since nobody is to wait."""

from __future__ import annotations

import math
import threading
import time

import numpy as np

from umaserve.engine.model.thread_places import Places, run_anywhere
from umaserve.policy.cost.model import FADED, CostModel

from .cost_file import CostFile

SAVE_EVERY_S = 30.0
ABSENCE_S = 30.0  # without a tick, after which others may run that did not, or the reverse


class CostKeeper:
    """For the loop's thread, whose ``places`` (`thread_places.find_places`) nobody else takes."""

    def __init__(self, places: Places, cost: CostModel) -> None:
        self._places = places
        self.cost = cost
        self._changed = False
        self._file: CostFile | None = None
        self._writer: threading.Thread | None = None
        self._why = ""  # the last attempt failed, and nobody was told yet
        self._saved_s = time.monotonic()
        self._saved_ticks = 0
        self._rested_s = math.inf  # since when no tick ran, as far as costs are still believed

    def recall(self, file: CostFile) -> None:
        """Fill ``cost`` from ``file``, where it has something, and keep it there from now on."""
        self._file = file
        file.load(self.cost)

    def learned(self) -> None:
        """Something is known that no tick taught: `save_now_and_then` writes it, called next."""
        self._changed, self._saved_s = True, -SAVE_EVERY_S

    def save_now_and_then(self, ticks: int) -> str:
        """Begin to write if there is something new and the last time is long ago.

        ``ticks``: how many there were.  Returns why the last attempt failed, once.
        """
        why, self._why = self._why, ""
        if ticks != self._saved_ticks:
            self._changed, self._rested_s = True, time.monotonic()
        self._saved_ticks = ticks
        if self._changed and time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self._begin()
        return why

    def doubt_after_pause(self) -> None:
        """Believe costs less after a pause of `ABSENCE_S`, as after a restart."""
        if time.monotonic() - self._rested_s >= ABSENCE_S:
            self._rested_s = math.inf
            np.minimum(self.cost.count, FADED, out=self.cost.count)

    def disbelieve(self) -> None:
        """Take all costs for unknown that can be measured again, after a disturbed measurement.

        What a shape took stays as an upper bound.
        """
        np.minimum(self.cost.count, 1.0, out=self.cost.count)
        self.cost.longest[:] = self.cost.parts[:] = 0.0

    def close(self) -> None:
        """Write what is new, and wait for it."""
        if self._writer is not None:
            self._writer.join()
        if self._changed:
            self._begin()
        if self._writer is not None:
            self._writer.join()

    def _begin(self) -> None:
        if self._file is None or self._writer is not None and self._writer.is_alive():
            return
        self._changed, self._saved_s = False, time.monotonic()
        copy = CostModel(*(array.copy() for array in self.cost))
        self._writer = threading.Thread(target=self._write, args=(self._file, copy), daemon=True)
        self._writer.start()

    def _write(self, file: CostFile, cost: CostModel) -> None:
        run_anywhere(self._places)
        self._why = file.save(cost)
