"""Logits that are no numbers end the request whose fault it is, and nobody else notices."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.fixtures.damaged_model import damaged
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import accused_with_others
from tests.support.requests_without_numbers import (
    BAD,
    TEXTS,
    TOKENS,
    Others,
    ask,
    expect_end,
    finish,
    started,
)
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.wire import messages as m
from umaserve.wire import table as t

pytestmark = pytest.mark.slow

LAYOUTS: dict[str, dict[str, Any]] = {
    "token-major": {},
    "without flash attention": {"flash_attn": "off"},
    "head-major": {"head_major": True},
    "quantised": {"type_k": "q8_0", "type_v": "q8_0"},
    "quantised keys, head-major": {"type_k": "q8_0", "head_major": True},
}
BESIDE = {"prefill_threads": 1, "latency_cap": 3.0}


@pytest.fixture(scope="module")
def nan_model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models")
    return damaged(demo_model_path(), folder / "nan.gguf", BAD, math.nan)


@pytest.fixture(scope="module")
def oracle(nan_model) -> Iterator[Oracle]:
    it = Oracle(1024, nan_model)
    yield it
    it.close()


@pytest.fixture(scope="module")
def prompts(oracle) -> list[list[int]]:
    """Prompts of different lengths, none of which has the bad token."""
    found = [oracle.model.tokenize(text) for text in TEXTS]
    assert all(BAD not in tokens for tokens in found)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_culprit_ends_and_others_are_as_without_it(nan_model, oracle, prompts, layout) -> None:
    with started(nan_model, **LAYOUTS[layout]) as engine:
        others = Others(engine, oracle)
        bad = [prompts[0] + [BAD] + prompts[1], [BAD] + prompts[3] * 5, prompts[2] + [BAD]]
        for i, tokens in enumerate(bad):
            # some decode already, one comes together with it, one after it
            others.ask(prompts[:2], 60 if i else TOKENS)
            others.begun()
            culprit = ask(engine, tokens)
            others.ask(prompts[2:4])
            assert expect_end(engine, culprit) == []
            others.ask(prompts[4:])
            others.check()
        others.ask(prompts)
        others.check()


@pytest.mark.parametrize("layout", ["without flash attention", "head-major"])
def test_cells_that_a_cancelled_request_leaves_harm_nobody(
    nan_model, oracle, prompts, layout
) -> None:
    with started(nan_model, **LAYOUTS[layout], n_batch=16) as engine:
        others = Others(engine, oracle)
        for _ in range(2):
            # nothing is sampled before the end of a long prompt
            culprit = ask(engine, [BAD] + prompts[4] * 50)
            while engine.table.n_past[engine.slots[culprit]] < 16:
                time.sleep(0.0005)
            engine.send(m.Cancel(culprit))
            engine.wait(culprit)
            assert engine.reason(culprit) == t.REASON_CANCEL
            engine.release(culprit)
            others.ask(prompts)
            others.check()


def test_a_token_that_the_model_says_itself(nan_model, oracle, prompts) -> None:
    """It is part of the answer; the one after it is none any more."""
    steered = m.Sampling(temperature=0.0, logit_bias=((BAD, 1000.0),), logprobs=2)
    with started(nan_model, head_major=True) as engine:
        others = Others(engine, oracle)
        others.ask(prompts, 60)
        others.begun()
        assert expect_end(engine, ask(engine, prompts[1], sampling=steered)) == [BAD]
        others.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "lane"),
    [
        ("head-major", m.LANE_INTERACTIVE),
        ("head-major", m.LANE_BACKGROUND),
        ("token-major", m.LANE_BACKGROUND),
    ],
)
def test_beside_the_ticks(nan_model, oracle, prompts, layout, lane) -> None:
    with started(nan_model, **LAYOUTS[layout], **BESIDE) as engine:
        others = Others(engine, oracle)
        stream = ask(engine, prompts[0], 700)
        engine.wait(stream, n_tokens=3)
        for round_ in range(3):
            long = (prompts[4] * 20)[: 150 + 50 * round_]
            culprit = ask(engine, [*long, BAD], lane=lane)
            others.ask(prompts[1:], lane=lane)
            assert expect_end(engine, culprit) == []
            others.check()
        engine.send(m.Cancel(stream))
        engine.wait(stream)
        oracle.assert_followed(prompts[0], engine.generated(stream))


@pytest.mark.slow
def test_culprits_that_come_without_end_keep_nobody_from_going_on(
    nan_model, oracle, prompts
) -> None:
    with started(nan_model, head_major=True) as engine:
        others = Others(engine, oracle)
        others.ask(prompts)
        for _ in range(12):
            expect_end(engine, ask(engine, [BAD, *prompts[0]]))
        others.check()


def test_several_culprits_at_once(nan_model, oracle, prompts) -> None:
    with started(nan_model, head_major=True) as engine:
        others = Others(engine, oracle)
        culprits = [ask(engine, [*prompts[i], BAD]) for i in range(3)]
        others.ask(prompts)
        ends = {}
        for serial in culprits:
            engine.wait(serial)
            assert engine.reason(serial) == t.REASON_ERROR
            failed = engine.expect(m.Failed)
            ends[failed.serials[0]] = failed.code
        assert ends == dict.fromkeys(culprits, "E_RUNTIME_001")
        others.check()


def test_a_suspect_may_be_cancelled(nan_model, oracle, prompts) -> None:
    with started(nan_model, head_major=True) as engine:
        beside = [ask(engine, prompt, 200) for prompt in prompts]
        culprit = ask(engine, [BAD, *prompts[0]])
        for serial in beside[::2]:
            engine.send(m.Cancel(serial))
        expect_end(engine, culprit)
        for i, serial in enumerate(beside):
            engine.wait(serial)
            assert engine.reason(serial) == (t.REASON_LENGTH if i % 2 else t.REASON_CANCEL)
            if engine.generated(serial):
                oracle.assert_followed(prompts[i], engine.generated(serial))


def test_trials_that_find_nobody_come_to_an_end(nan_model, oracle, prompts) -> None:
    with started(nan_model, patch=accused_with_others) as engine:
        serials = [ask(engine, prompt) for prompt in prompts[:3]]
        reasons = []
        for serial, prompt in zip(serials, prompts, strict=False):
            engine.wait(serial)
            reasons.append(engine.reason(serial))
            oracle.assert_followed(prompt, engine.generated(serial))
        assert reasons == [t.REASON_ERROR, t.REASON_ERROR, t.REASON_LENGTH]


@pytest.mark.parametrize("value", [math.inf, 6e4])
def test_other_embeddings_out_of_range(tmp_path, oracle, prompts, value) -> None:
    """What is only large is a number like any other."""
    model = damaged(demo_model_path(), tmp_path / "x.gguf", BAD, value)
    with started(model, head_major=True) as engine:
        others = Others(engine, oracle)
        others.ask(prompts[:2])
        culprit = ask(engine, [*prompts[3], BAD])
        if math.isinf(value):
            expect_end(engine, culprit)
        else:
            finish(engine, [culprit])
        others.check()


def test_a_model_that_has_no_numbers_at_all_is_refused(tmp_path: Path) -> None:
    with llama.Model.open(
        llama.load("auto"), str(demo_model_path()), vocab_only=True
    ) as whole:
        start = max(whole.token_bos, 0)
    model = damaged(demo_model_path(), tmp_path / "x.gguf", start, math.inf)
    engine = DrivenEngine(model=model, probe=False, expect_failure=True)
    assert "not numbers" in engine.failure
    engine.close()


def test_rows_without_numbers_are_told_from_others() -> None:
    from umaserve.sampling.select import has_numbers

    nan, inf = math.nan, math.inf
    none = ([nan] * 9, [-inf] * 9, [inf] * 9, [0.0] * 9, [nan, inf, -inf, nan], [3.5] * 4)
    some = ([nan, 1.0, 2.0], [nan, nan, 1.0], [-inf, -inf, 1.0], [1.0, -inf], [0.0, 0.0, 1e-30])
    for row in none:
        assert not has_numbers(np.array(row, np.float32)), row
    for row in some:
        assert has_numbers(np.array(row, np.float32)), row
