"""Chunks that the prefill worker puts together and the loop computes, on a processor."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.prefill_rig import TOLERANCE, Rig, alone
from umaserve import llama
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill import gate as g
from umaserve.engine.prefill.chunk_stack import choose_owner, run_parts
from umaserve.policy.cost.model import CHUNK_SIZES, chunk_class

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="swapcontext is used with the GNU C library only"
)
TOKENS, GRANTED = 100, 64
FAR_NS = 1 << 62  # a slice without end


class SlicedRig(Rig):
    """The loop computes the chunks, as the test says."""

    def __init__(self, model: llama.Model) -> None:
        super().__init__(model)
        self.orders, self.gate = self.worker.orders, self.worker.orders.gate
        self.gate.by_loop = 1
        self.native = Native.of(model.library, self.context.pointer, self.batch.struct, -1, [])

    def handed(self) -> int:
        """Wait for a chunk; its tokens."""
        self.until(lambda: self.gate.owner == g.HANDED)
        return int(self.worker._thread._batch.arrays.n_tokens[0])

    def give_up(self, redo: bool) -> None:
        """As the loop does where it wants none, or where a smaller one is wanted."""
        self.orders.grant[0] = GRANTED
        choose_owner(self.gate, 0, redo, True, redo, self.native, self.orders.wake_fd)

    def compute(self) -> None:
        """The chunk that was handed over, to its end, and grant the next."""
        self.orders.grant[0] = GRANTED
        run_parts(self.gate, self.native, FAR_NS, self.orders.wake_fd)
        # the thread may have taken it already, and handed over the next chunk
        assert self.gate.owner != g.UNDER_WAY and self.gate.status == 0


@pytest.fixture
def rig(model: llama.Model) -> Iterator[SlicedRig]:
    made = SlicedRig(model)
    yield made
    made.close()


@pytest.fixture
def prompt(model: llama.Model) -> list[int]:
    """Its last token is the ticks'."""
    return (1 + (7919 * np.arange(1, TOKENS + 2)) % (model.n_vocab - 1)).tolist()


@pytest.mark.parametrize("redo, sizes", [(False, [TOKENS]), (True, [TOKENS // 2, TOKENS // 2])])
def test_after_a_chunk_that_was_too_long_none_is_larger_than_granted(rig, prompt, redo, sizes):
    """Else that of a short prompt, which may have more, would be given up again for ever."""
    expected = alone(rig, prompt, TOKENS)
    rig.context.seq_rm(-1)
    rig.put(0, prompt)
    rig.orders.grant[0] = GRANTED
    rig.worker.want([0])
    assert rig.handed() == TOKENS
    rig.give_up(redo)
    seen = []
    while sum(seen) < TOKENS:
        rig.until(lambda: rig.gate.owner in (g.THREAD, g.HANDED))
        seen.append(rig.handed())
        rig.compute()
    assert seen == sizes
    assert abs(rig.finish(0) - expected).max() < TOLERANCE


@pytest.mark.parametrize("tokens, counts_as", [(70, 64), (100, 128)])
def test_a_few_tokens_more_than_granted_are_no_other_size(rig, prompt, tokens, counts_as):
    rig.put(0, prompt[: tokens + 1])
    rig.orders.grant[0] = GRANTED
    rig.worker.want([0])
    assert rig.handed() == tokens
    assert rig.gate.size_class == chunk_class(counts_as)
    assert CHUNK_SIZES[rig.gate.size_class] == counts_as
    rig.compute()
    rig.finish(0)
