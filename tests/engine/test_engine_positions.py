"""Cells of all sessions against positions of one: more cells than the model was trained for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.small_models import write_model
from umaserve.server.requests.tokens import delivery
from umaserve.wire import messages as m
from umaserve.wire import table as t

TRAINED = 64
GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its positions are rows of a matrix: libllama aborts at one that it was not trained for."""
    path = tmp_path_factory.mktemp("positions") / "gpt2.gguf"
    return write_model(path, "gpt2-micro", n_ctx=TRAINED)


@pytest.fixture(scope="module", params=[0, -1], ids=["no worker", "worker"])
def engine(model: str, request: pytest.FixtureRequest) -> Iterator[DrivenEngine]:
    with DrivenEngine(model=model, n_ctx=2048, prefill_threads=request.param) as engine:
        yield engine


def test_sessions_together_have_more_positions_than_the_model_was_trained_for(
    engine: DrivenEngine,
) -> None:
    assert (engine.ready.n_ctx, engine.ready.n_ctx_train) == (2048, TRAINED)
    assert engine.ready.n_positions == TRAINED
    serials = engine.submit_together(
        [f"{i} Hello world" for i in range(8)], max_tokens=0, sampling=GREEDY
    )
    for serial in serials:
        engine.wait(serial)
        assert engine.reason(serial) == t.REASON_LENGTH
        assert len(engine.prompt_tokens(serial)) + len(engine.generated(serial)) == TRAINED
        engine.release(serial)


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [("word " * TRAINED, {}), ("Hello", {"max_tokens": TRAINED, "strict_fit": True})],
)
def test_what_one_session_cannot_hold_is_refused_by_what_bounds_it(
    engine: DrivenEngine, prompt: str, fields: dict[str, Any]
) -> None:
    serial = engine.submit(prompt, **fields)
    rejected = engine.expect(m.Rejected)
    assert (rejected.serial, rejected.code) == (serial, "E_LIMIT_003")
    assert f"the model was trained for {TRAINED} tokens" in rejected.message
    assert "--n-ctx" not in rejected.message  # that would not help
    engine._free.append(engine.slots.pop(serial))


def test_a_request_that_goes_on_after_a_crash_keeps_the_bound(engine: DrivenEngine) -> None:
    tokens = list(range(100, 100 + TRAINED - 2))
    serial = engine.submit(None, tokens=tokens, n_prompt=10, max_tokens=0, sampling=GREEDY)
    engine.wait(serial)
    assert engine.reason(serial) == t.REASON_LENGTH
    assert len(engine.generated(serial)) == TRAINED - 10
    engine.release(serial)


@pytest.mark.parametrize(
    ("n_ctx", "trained", "positions"), [(100, 64, 64), (64, 100, 64), (64, 64, 64), (64, 0, 64)]
)
def test_the_front_knows_which_token_is_the_last(n_ctx: int, trained: int, positions: int) -> None:
    ready: Any = m.Ready(
        model_path="", model_name="", description="", architecture="", n_vocab=1, n_ctx=n_ctx,
        n_ctx_train=trained, n_seq=1, n_batch=1, n_ubatch=1, n_threads=1, n_threads_batch=1,
        backend="", device="", library_version="", model_bytes=1, kv_bytes=1, n_params=1,
    )  # fmt: skip
    assert ready.n_positions == positions
    engine: Any = SimpleNamespace(ready=ready)
    for end in (positions - 1, positions):
        request: Any = SimpleNamespace(
            tokens=[1] * (end - 10), prompt_ids=[1] * 10, max_tokens=1000, stored=end,
            outlives_context=False,
        )  # fmt: skip
        assert delivery._is_last(request, engine) == (end == positions)
        assert delivery.may_end(request, engine, end, end) == (end == positions)
