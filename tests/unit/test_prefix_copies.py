"""What copies of whole states take on an accelerator: learned, and weighed against computing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from umaserve.cache.entry import Part
from umaserve.engine.prefixes.copies import BYTES_PER_MS, WholeStates
from umaserve.engine.prefixes.restoring import Restorer
from umaserve.policy.cost.model import CostModel, learn

MIB = 1 << 20


def states(on_processor: bool) -> WholeStates:
    """Return a store's copies of a model whose states have 64 MiB, and marks 16."""
    lib = SimpleNamespace(
        llama_model_n_layer=lambda model: 4, llama_model_is_recurrent=lambda model: False,
        llama_model_is_hybrid=lambda model: False,
    )  # fmt: skip
    context = SimpleNamespace(
        state_seq_size=lambda seq, partial=False: (16 if partial else 64) * MIB
    )
    loaded = SimpleNamespace(
        context=context, on_processor=on_processor, library=SimpleNamespace(lib=lib),
        model=SimpleNamespace(pointer=None),
    )  # fmt: skip
    return WholeStates(loaded, 1 << 30)  # type: ignore[arg-type]


def test_copies_of_a_processor_are_cheap_whatever_they_take() -> None:
    copies = states(on_processor=True)
    copies.learn(64 * MIB, 1000.0)
    assert copies.save_ms(0, 0, 100, 100) == copies.mark_ms(0) == copies.step_ms == 0.0


def test_what_copies_take_is_learned_from_large_ones() -> None:
    copies = states(on_processor=False)
    assert copies.save_ms(0, 0, 100, 100) == pytest.approx(64 * MIB / BYTES_PER_MS)
    copies.learn(1000, 50.0)  # a call costs something, whatever it copies
    assert copies.save_ms(0, 0, 100, 100) == pytest.approx(64 * MIB / BYTES_PER_MS)
    for _ in range(30):
        copies.learn(32 * MIB, 32.0)
    assert copies.save_ms(0, 0, 100, 100) == pytest.approx(64.0, rel=0.01)
    assert copies.mark_ms(0) == pytest.approx(16.0, rel=0.01)


@pytest.mark.parametrize(("copy_ms", "pays"), [(30.0, True), (60.0, False)])
def test_a_state_is_restored_where_that_is_faster_than_computing(
    copy_ms: float, pays: bool
) -> None:
    copies, cost = states(on_processor=False), CostModel.unknown()
    for _ in range(20):
        learn(cost, 0, 0, 512, 256.0, 50.0)
        learn(cost, 0, 0, 16, 520.0, 5.0)
    data = np.empty(32 * MIB, np.uint8)
    for _ in range(30):
        copies.learn(data.size, copy_ms)
    part = Part(SimpleNamespace(data=data, p1=512), 512)  # type: ignore[arg-type]
    table = SimpleNamespace(n_tokens=np.array([528]))
    restorer = Restorer(table, None, cost, copies, 4096, lambda slot: None)  # type: ignore[arg-type]
    assert restorer.pays(0, [part]) == pays
