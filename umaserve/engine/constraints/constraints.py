"""All requests of an engine that constraints bind; for the loop's thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from umaserve.llama import Model
from umaserve.sampling.mask import LATE
from umaserve.sampling.params import MASK, SamplerTable
from umaserve.wire import messages as m
from umaserve.wire import table as t

from .bound import Bound
from .vocabulary import Vocabulary

LONGEST_S = 2.0  # that a mask may take
CODE = "E_RUNTIME_003"


class Constraints:
    """``notify`` is called from a thread when `take_compiled` has something."""

    def __init__(
        self,
        model: Model,
        table: t.SessionTable,
        samplers: SamplerTable,
        notify: Callable[[], None],
    ) -> None:
        self._vocabulary: Vocabulary | None = None
        self._model, self._table, self._samplers, self._notify = model, table, samplers, notify
        self._compiled: deque[Bound] = deque()
        self._bound: dict[int, Bound] = {}  # by serial

    def compile(self, message: m.Submit) -> None:
        """Have a request's constraint compiled, by a thread of its own."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self._model)
        bound = Bound(message, self._vocabulary, self._table, self._samplers, self._put)
        self._bound[message.serial] = bound
        try:
            bound.start()
        except (RuntimeError, MemoryError):
            bound.error = "there is no memory for its thread"
            self._put(bound)

    def _put(self, bound: Bound) -> None:
        self._compiled.append(bound)
        self._notify()

    @property
    def has_compiled(self) -> bool:
        """Whether `take_compiled` has something."""
        return bool(self._compiled)

    def take_compiled(self) -> tuple[m.Submit, str]:
        """The next request whose constraint is compiled, and what is wrong with that, or ''."""
        bound = self._compiled.popleft()
        return bound.message, bound.error

    def attach(self, serial: int) -> None:
        """The request has its row, and its settings stand."""
        if serial in self._bound:
            self._bound[serial].attach()

    def moving(self, serial: int, dropped: int) -> AbstractContextManager[None]:
        """A row's tokens move down by so many while this is entered."""
        bound = self._bound.get(serial)
        return nullcontext() if bound is None else bound.moving(dropped)

    def drop(self, serial: int) -> None:
        """The request is over, or was refused."""
        bound = self._bound.pop(serial, None)
        if bound is not None:
            bound.close()

    def verdict(self, slot: int) -> tuple[int, str]:
        """Reason to end a row that got no token, and the text of its error; "" where there is none.

        `t.REASON_NONE`: its mask is only late.
        """
        bound = self._bound.get(int(self._table.serial[slot]))
        if bound is None:
            return t.REASON_ERROR, "its constraint is gone"
        if bound.error:
            return t.REASON_ERROR, bound.error
        if self._samplers.whole[slot, MASK] != LATE:  # it may have come after the tick
            if bound.may_end():
                return t.REASON_STOP, ""
            return t.REASON_ERROR, "no token that the constraint allows may be chosen"
        since = bound.busy_since
        if since and time.monotonic() - since > LONGEST_S:
            return t.REASON_ERROR, "its constraint takes too long to follow"
        return t.REASON_NONE, ""
