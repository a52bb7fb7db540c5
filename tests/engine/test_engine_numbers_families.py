"""Rows without numbers in recurrent, hybrid and sliding-window memory: nobody else notices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.fixtures.damaged_model import damaged
from tests.support.made_models import written
from tests.support.oracle import Oracle
from tests.support.requests_without_numbers import BAD, Others, ask, expect_end, started

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", ["mamba-micro", "jamba-micro", "gemma3-micro"])
def test_the_culprit_ends_and_others_are_as_without_it(tmp_path: Path, shape: str) -> None:
    whole = written(shape, tmp_path / "whole.gguf", "--quant", "f16")
    model = damaged(whole, tmp_path / "nan.gguf", BAD, math.nan)
    prompts = [[300 + 7 * i + 11 * k for k in range(6 + 3 * i)] for i in range(5)]
    oracle = Oracle(512, model)
    with started(model, n_ctx=512) as engine:
        others = Others(engine, oracle)
        for _ in range(2):
            others.ask(prompts[:2], 60)
            others.begun()
            culprit = ask(engine, [*prompts[0], BAD, *prompts[1] * 3])
            others.ask(prompts[2:4])
            assert expect_end(engine, culprit) == []
            others.ask(prompts[4:])  # the state that is free now may be taken again
            others.check()
    oracle.close()
