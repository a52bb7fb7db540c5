"""The worker of prompts beside the ticks, where there is one; see `worker`."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.engine.model.loaded import Setup
from umaserve.engine.samplers.first_token import FirstTokens
from umaserve.policy.cost.model import CostModel, doubt_larger, learn_part

from .orders import Orders
from .worker import PrefillWorker, why_not_aside


class Beside:
    """For the loop's thread.  Without a ``worker`` nothing is done here.

    ``threads``: those of the worker, 0 = there is none.
    """

    def __init__(
        self, setup: Setup, cost: CostModel, first_tokens: Callable[[], FirstTokens]
    ) -> None:
        self._setup, self._cost, self._first_tokens = setup, cost, first_tokens
        self.worker: PrefillWorker | None = None
        self.threads = 0
        self.orders = Orders.allocate(1, -1)

    def open(self, abortable: bool) -> None:
        """Start the worker; a device that is not ``abortable`` computes prompts in the ticks."""
        start, loaded = self._setup.start, self._setup.loaded
        asked = start.prefill_threads
        if asked == 0 or why_not_aside(loaded) or not abortable:
            return
        self.threads = min(asked, loaded.n_cores - 1) if asked > 0 else loaded.n_cores // 2
        if self.threads:
            self.worker = PrefillWorker(
                self._setup, self.threads, self._chunk_took, self._first_tokens()
            )
            self.orders = self.worker.orders

    def _chunk_took(self, tokens: int, longest_ms: float, all_ms: float) -> None:
        """From the worker's thread: what the parts of a chunk between the ticks took."""
        learn_part(self._cost, tokens, longest_ms, all_ms)
        doubt_larger(self._cost, tokens)

    @property
    def alive(self) -> bool:
        """Whether prompts are computed beside the ticks."""
        return self.worker is not None and self.worker.alive

    @property
    def sliced(self) -> bool:
        """Whether the loop computes chunks itself, in slices of time between ticks."""
        return self.worker is not None and self.worker.sliced

    def forget(self, slot: int) -> None:
        """Drop all that the worker has of a row, whose request ended or lost its cells."""
        if self.worker is not None:
            self.worker.forget(slot)

    def reclaim(self, slot: int) -> None:
        """Leave a prompt to the ticks from now on."""
        if self.worker is not None:
            self.worker.reclaim(slot)

    def clear(self) -> None:
        """Forget all prompts, and zero the second context's memory; after `forget` for all rows."""
        if self.worker is not None:
            self.worker.clear()

    def close(self) -> None:
        """End the worker."""
        if self.worker is not None:
            self.worker.close()
