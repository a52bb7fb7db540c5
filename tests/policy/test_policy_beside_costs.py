"""What is learned of chunks beside the ticks, and kept; what late tokens cost a stream."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policy_states import empty, put
from umaserve.engine.model.cost_file import CostFile, identity
from umaserve.policy.accelerator.beside import LANDING, LANDING_LATE, may_land
from umaserve.policy.base import BACK_WAIT_MS
from umaserve.policy.cost.model import (
    CHUNK_SIZES,
    CHUNK_WEIGHT,
    WILD,
    CostModel,
    chunk_class,
    learn_part,
)
from umaserve.policy.latency_guard import (
    EARNED,
    LEAST_CREDIT,
    MOST_CREDIT,
    poorest,
    settle_credit,
)
from umaserve.wire import messages as m
from umaserve.wire.states import DONE, RUNNING, WAITING

SIZES = CHUNK_SIZES.tolist()


@pytest.mark.parametrize(
    ("tokens", "size"),
    [(1, 16), (16, 16), (17, 32), (33, 48), (64, 64), (65, 96), (500, 512), (512, 512), (900, 512)],
)
def test_a_chunk_counts_as_the_next_larger_size(tokens, size):
    assert SIZES[chunk_class(tokens)] == size


@given(st.integers(1, 4000), st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60))
@settings(max_examples=150, deadline=None)
def test_the_longest_part_is_a_running_mean_that_moves_a_bounded_way(tokens, seen):
    cost = CostModel.unknown()
    i = chunk_class(tokens)
    for n, ms in enumerate(seen):
        before = cost.longest[i]
        learn_part(cost, tokens, ms, 3.0 * ms)
        now = cost.longest[i]
        assert cost.parts[i] == pytest.approx(3.0 * now)
        if n == 0:
            assert now == ms
            continue
        assert now == pytest.approx(
            before + CHUNK_WEIGHT * (min(ms, WILD * before) - before), rel=1e-9
        )
        assert 0.0 < now <= before * (1.0 + (WILD - 1.0) * CHUNK_WEIGHT) * (1.0 + 1e-9)
    assert not np.delete(cost.longest, i).any() and not np.delete(cost.parts, i).any()
    others = (array for name, array in cost.numbers().items() if name not in ("longest", "parts"))
    assert not any(array.any() for array in others)


def test_an_outlier_among_known_parts_hardly_counts_and_a_change_is_followed():
    cost = CostModel.unknown()
    for _ in range(100):
        learn_part(cost, 48, 1.2, 9.0)
    learn_part(cost, 48, 1000.0, 9.0)
    assert 1.2 < cost.longest[2] <= 1.2 * (1.0 + (WILD - 1.0) * CHUNK_WEIGHT) * (1.0 + 1e-9)
    for _ in range(50):
        learn_part(cost, 40, 0.5, 9.0)
    assert cost.longest[2] == pytest.approx(0.5, rel=0.01)


def test_cells_of_the_background_land_when_the_poorest_stream_can_pay():
    state = empty()
    put(state, 3, 1, 5000, 0, credit=-9.0)
    assert poorest(state) > 1e6 and may_land(state, 1, 0.0)  # nobody's token would be late
    put(state, 0, 0, 100, 99, credit=LANDING + 0.1)
    put(state, 1, 0, 100, 99, credit=LANDING)
    for s, (status, lane, left) in enumerate([(WAITING, 0, 1), (DONE, 0, 1), (RUNNING, 1, 1),
                                              (RUNNING, 0, 9)], 4):  # fmt: skip
        put(state, s, lane, 100 + left, 100, credit=-9.0)
        state.state[s] = status
    assert poorest(state) == LANDING and may_land(state, 1, 0.0)
    state.credit[1] = LANDING - 0.01
    assert poorest(state) == LANDING - 0.01 and not may_land(state, 1, 0.0)
    assert may_land(state, 0, 0.0)


def test_cells_that_waited_long_cost_less_credit_though_never_none():
    state = empty()
    put(state, 0, 0, 100, 99, credit=LANDING_LATE)
    for waited_ms, lands in [(0.0, False), (BACK_WAIT_MS, False), (BACK_WAIT_MS + 1.0, True)]:
        assert may_land(state, 1, waited_ms) == lands
        assert may_land(state, 0, waited_ms)
    state.credit[0] = LANDING_LATE - 0.01
    assert not may_land(state, 1, 1e9)


@given(st.lists(st.booleans(), max_size=300))
@settings(max_examples=80, deadline=None)
def test_debt_is_remembered_so_deep_and_no_deeper(slow):
    credit = expected = 1.0
    for late in slow:
        credit, was = settle_credit(credit, EARNED, 0.0, 1.2, 10.0, 20.0 if late else 10.0)
        expected = (
            max(expected - 1.0, LEAST_CREDIT) if late else min(expected + EARNED, MOST_CREDIT)
        )
        assert was == late
        assert credit == pytest.approx(expected)


def test_what_chunks_cost_is_kept_from_start_to_start(tmp_path):
    model = SimpleNamespace(description="x", size_bytes=10, n_params=5)
    library = SimpleNamespace(version="b1", build=SimpleNamespace(backend="cpu"))
    loaded = SimpleNamespace(
        model=model, library=library, device="CPU", n_threads=2, n_threads_batch=2, n_ctx=512,
        n_ubatch=512,
    )  # fmt: skip
    key = identity(m.Start("m.gguf", n_slots=4, n_ctx=512, n_seq=2), loaded)
    cost = CostModel.unknown()
    for size, ms in zip(SIZES, (0.1, 0.4, 1.9), strict=False):
        learn_part(cost, size, ms, 9.0)
    cost.copies[2] = 0.7
    file, read = CostFile(key, tmp_path), CostModel.unknown()
    assert file.save(cost) == ""
    assert file.load(read)
    assert (read.longest == cost.longest).all() and read.longest.any()
    assert (read.copies == cost.copies).all() and read.copies.any()
    # one of the layout before has another name, is none of ours under this one, and lacks these
    assert key["layout"] == 10
    old, read = CostFile({**key, "layout": 6}, tmp_path), CostModel.unknown()
    assert old.path != file.path
    old.save(cost)
    old.path.replace(file.path)
    assert not file.load(read)
    arrays = {name: array for name, array in cost.numbers().items() if name != "copies"}
    np.savez_compressed(file.path, key=file.key, **arrays)
    assert not file.load(read)
    assert not any(array.any() for array in read.numbers().values())
