"""A request that a constraint binds, and the thread that makes its masks.

The thread compiles the constraint, and is woken by a byte for each token of the row.  It reads the
new tokens in the session table, so whatever ticks are given up or repeated, no token is taken
twice.  A mask is for a number of tokens, and the ticks take no mask for another number.  Where the
row's context is shifted, both numbers go down with its tokens.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from umaserve.sampling import params as p
from umaserve.sampling.mask import words_of
from umaserve.sampling.params import SamplerTable
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.memory_order import loads_first, stores_first

from .matcher import CannotBind, Matcher
from .matchers import matcher_of
from .vocabulary import Vocabulary

STACK_BYTES = 64 << 20  # address space, of which only what is used becomes memory
FAILS = "the answer cannot follow its constraint any more"


class Bound:
    """``compiled`` is called from the thread once ``error`` says whether the constraint is one.

    The loop calls `attach` when the request has its row, and `close` when the row ends.
    """

    def __init__(
        self,
        message: m.Submit,
        vocabulary: Vocabulary,
        table: t.SessionTable,
        samplers: SamplerTable,
        compiled: Callable[[Bound], None],
    ) -> None:
        assert message.constraint is not None
        self.message = message
        self.error = ""
        self._vocabulary, self._table, self._samplers = vocabulary, table, samplers
        self._compiled = compiled
        self._slot = message.slot
        self._mask = np.zeros(words_of(vocabulary.model.n_vocab), np.int32)
        self._asked, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._lock = threading.Lock()  # between the thread and `close` or `moving`
        self._is_closed = False
        self._has_row = False
        # generated tokens that the matcher has not seen, in front of those of the row from `_at` on
        self._left = message.left
        self._at = 0
        self._filled = -1  # tokens that the newest mask is for
        self.busy_since = 0.0  # monotonic; 0 = nothing is asked

    def start(self) -> None:
        """Raises ``RuntimeError`` or ``MemoryError`` where the system gives no thread."""
        usual = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=self._run, name="constraint", daemon=True).start()
        finally:
            threading.stack_size(usual)

    def attach(self) -> None:
        """The request has its row, and is about to run."""
        self._at = int(self._table.n_prompt[self._slot]) + len(self._left)
        self._samplers.bind(self._slot, self._wakes)
        self._has_row = True
        os.write(self._wakes, b"x")

    @contextmanager
    def moving(self, dropped: int) -> Iterator[None]:
        """The row's tokens move down by so many while this is entered; the newest stays.

        The row does not run.
        """
        with self._lock:
            self._see()  # the thread may have some of them before it yet
            yield
            self._at -= dropped
            self._filled = -1
            whole = self._samplers.whole[self._slot]
            if whole[p.MASK_AT] != p.NO_MORE_MASKS:
                whole[p.MASK_AT] = p.NO_MASK
            with suppress(OSError):  # it has enough to wake it, or it has failed
                os.write(self._wakes, b"x")

    def may_end(self) -> bool:
        """Whether the mask that the row was sampled with lets the answer end; between ticks."""
        address = self._samplers.whole[self._slot, p.MASK]
        return address == self._mask.ctypes.data and self._vocabulary.may_end(self._mask)

    def close(self) -> None:
        """Nobody wants masks any more."""
        with self._lock:
            self._is_closed = True
            if self._has_row:
                whole = self._samplers.whole[self._slot]
                whole[p.CONSTRAINT] = whole[p.MASK] = 0
            os.close(self._wakes)

    def _run(self) -> None:
        matcher = self._compile()
        self._compiled(self)
        try:
            if matcher is not None:
                self._serve(matcher)
        finally:
            os.close(self._asked)
            if matcher is not None:
                matcher.close()

    def _compile(self) -> Matcher | None:
        assert self.message.constraint is not None
        # what a client's bytes drive in here is blamed on that request if it ends the process
        self._table.in_tick[self._slot] = t.IN_TOKENIZER
        try:
            return matcher_of(self.message.constraint, self._vocabulary)
        except CannotBind as error:
            self.error = str(error)
        except Exception as error:  # whatever a library raises
            self.error = f"it cannot be compiled ({type(error).__name__})"
        finally:
            self._table.in_tick[self._slot] = 0
        return None

    def _serve(self, matcher: Matcher) -> None:
        while os.read(self._asked, 64):
            # where they are equal, a tick may be reading that mask
            if self._filled != self._table.n_tokens[self._slot] and not self._make_next(matcher):
                return

    def _make_next(self, matcher: Matcher) -> bool:
        """Make the mask for the row's tokens; False: it was the last."""
        self.busy_since = time.monotonic()
        at, address = p.NO_MORE_MASKS, 0
        try:
            at, address = self._advance(matcher)
        except CannotBind as error:
            self.error = f"{FAILS}: {error}"
        except Exception as error:  # whatever a library raises
            self.error = f"{FAILS} ({type(error).__name__})"
        with self._lock:
            if self._is_closed:
                return False
            whole = self._samplers.whole[self._slot]
            whole[p.NEXT_MASK] = address
            stores_first()
            whole[p.MASK_AT] = at
        self.busy_since = 0.0
        return not self.error

    def _advance(self, matcher: Matcher) -> tuple[int, int]:
        """(Tokens that the mask is for, its address or 0)."""
        with self._lock:
            self._see()
            new, self._left, n_tokens = self._left, [], self._at
            self._filled = n_tokens
        if new:
            matcher.accept(new)
        binds = self._vocabulary.fill(matcher, self._mask)
        return n_tokens, self._mask.ctypes.data if binds else 0

    def _see(self) -> None:
        """Take the new tokens of the row; under the lock."""
        n_tokens = int(self._table.n_tokens[self._slot])
        loads_first()
        self._left = self._left + self._table.tokens[self._slot, self._at : n_tokens].tolist()
        self._at = n_tokens
