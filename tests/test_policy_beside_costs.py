"""What is learned of chunks beside the ticks, and kept; what late tokens cost a stream."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_policy_guarded import empty, put
from umaserve.engine import messages as m
from umaserve.engine.cost_file import CostFile, identity
from umaserve.policy.beside import LANDING, may_land, poorest
from umaserve.policy.cost import (
    BESIDE_SIZES,
    BESIDE_WEIGHT,
    CHUNK_MS,
    FACTOR,
    SEEN,
    WILD,
    CostModel,
    beside_class,
    learn_beside,
    learn_chunk,
)
from umaserve.policy.latency_guard import (
    EARNED,
    LEAST_CREDIT,
    LEAST_PACED,
    MOST_CREDIT,
    settle_credit,
)
from umaserve.states import DONE, RUNNING, WAITING

SIZES = BESIDE_SIZES.tolist()


@given(st.integers(1, 4000), st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60))
@settings(max_examples=150, deadline=None)
def test_factors_are_never_below_one_and_move_a_bounded_way(tokens, seen):
    cost = CostModel.unknown()
    i = beside_class(tokens)
    assert i == max([at for at, size in enumerate(SIZES) if size <= tokens], default=0)
    before = 0.0
    for n, factor in enumerate(seen, 1):
        learn_beside(cost, tokens, factor)
        now = cost.beside[i, FACTOR]
        assert now >= 1.0
        if before:
            assert now <= before * (1.0 + (WILD - 1.0) * max(1.0 / n, BESIDE_WEIGHT)) * (1.0 + 1e-9)
        assert cost.beside[i, SEEN] == n
        before = now
    assert not np.delete(cost.beside, i, axis=0).any()
    assert not cost.beside[i, CHUNK_MS]


def test_an_outlier_among_known_factors_hardly_counts_and_a_change_is_followed():
    cost = CostModel.unknown()
    for _ in range(100):
        learn_beside(cost, 64, 1.2)
        learn_chunk(cost, 64, 8.0)
    learn_beside(cost, 64, 1000.0)
    assert 1.2 < cost.beside[2, FACTOR] < 1.35
    for _ in range(100):
        learn_beside(cost, 64, 1.5)
        learn_chunk(cost, 64, 12.0)
    assert cost.beside[2, FACTOR] == pytest.approx(1.5, rel=0.01)
    assert cost.beside[2, CHUNK_MS] == pytest.approx(12.0, rel=0.01)


def test_cells_of_the_background_land_when_the_poorest_stream_can_pay():
    state = empty()
    put(state, 3, 1, 5000, 0, credit=-9.0)
    assert poorest(state) > 1e6 and may_land(state, 1)  # nobody's token would be late
    put(state, 0, 0, 100, 99, credit=2.0)
    put(state, 1, 0, 100, 99, credit=LANDING)
    for s, (status, lane, left) in enumerate([(WAITING, 0, 1), (DONE, 0, 1), (RUNNING, 1, 1),
                                              (RUNNING, 0, 9)], 4):  # fmt: skip
        put(state, s, lane, 100 + left, 100, credit=-9.0)
        state.state[s] = status
    assert poorest(state) == LANDING and may_land(state, 1)
    state.credit[1] = LANDING - 0.01
    assert poorest(state) == LANDING - 0.01 and not may_land(state, 1)
    assert may_land(state, 0)


@given(st.lists(st.booleans(), max_size=300), st.sampled_from([LEAST_CREDIT, LEAST_PACED]))
@settings(max_examples=80, deadline=None)
def test_debt_is_remembered_as_deep_as_told(slow, least):
    credit = expected = 1.0
    for late in slow:
        credit, was = settle_credit(credit, 0.0, 1.2, 10.0, 20.0 if late else 10.0, least)
        expected = max(expected - 1.0, least) if late else min(expected + EARNED, MOST_CREDIT)
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
    for size, factor in zip(SIZES, (1.1, 1.4, 1.9), strict=False):
        learn_beside(cost, size, factor)
        learn_chunk(cost, size, 20.0 * factor)
    file, read = CostFile(key, tmp_path), CostModel.unknown()
    assert file.save(cost) == ""
    assert file.load(read)
    assert (read.beside == cost.beside).all() and read.beside.any()
    # one of the layout before has another name, is none of ours under this one, and lacks these
    assert key["layout"] == 4
    old, read = CostFile({**key, "layout": 3}, tmp_path), CostModel.unknown()
    assert old.path != file.path
    old.save(cost)
    old.path.replace(file.path)
    assert not file.load(read)
    arrays = {name: array for name, array in cost._asdict().items() if name != "beside"}
    np.savez_compressed(file.path, key=file.key, **arrays)
    assert not file.load(read)
    assert not any(array.any() for array in read)
