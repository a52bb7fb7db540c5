"""Drafts of a model with a sliding window: wrong ones are forgotten, and the window stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.made_models import written
from tests.support.oracle import Oracle
from umaserve.wire import messages as m

WINDOW = 64  # tokens of the model's windows
UNBOUND = ("latency-guard", "sweet-spot")  # so that rows have drafts beside each other
GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("model") / "model.gguf"
    return str(written("gemma3-micro", out, "--quant", "f16"))


@pytest.fixture(scope="module")
def engine(path: str) -> Iterator[DrivenEngine]:
    with DrivenEngine(
        model=path, n_ctx=4096, n_seq=4, speculate="ngram", probe=False, prefill_threads=0,
        without=UNBOUND,
    ) as engine:  # fmt: skip
        yield engine


@pytest.fixture(scope="module")
def judge(path: str) -> Iterator[Oracle]:
    oracle = Oracle(4096, path)
    yield oracle
    oracle.close()


@pytest.mark.parametrize("rows", [1, 3])
def test_answers_with_drafts_are_likely_ones(
    engine: DrivenEngine, judge: Oracle, rows: int
) -> None:
    header = engine.table.header
    given, taken = int(header.draft_tokens), int(header.draft_accepted)
    prompts = [[300 + row, 301, 302, 303, 304] * 40 for row in range(rows)]
    serials = [
        engine.submit(tokens=p, n_prompt=len(p), max_tokens=5 * WINDOW, sampling=GREEDY)
        for p in prompts
    ]
    for serial, prompt in zip(serials, prompts, strict=True):
        engine.wait(serial)
        answer = engine.generated(serial)
        assert len(answer) == 5 * WINDOW
        assert judge.greedy_gaps(prompt, answer).max() < 0.1
        engine.release(serial)
    given, taken = int(header.draft_tokens) - given, int(header.draft_accepted) - taken
    assert given > taken > 0, "some were right, and some were forgotten"
