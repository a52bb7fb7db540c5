"""``--experts-used``: a mixture whose tokens use another number of experts than its file says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.small_models import write_header, write_model
from umaserve.models.experts import why_not_used
from umaserve.models.gguf.faults import check_gguf
from umaserve.wire import messages as m

PROMPT = [300 + 7 * k for k in range(40)]


def answer(model: str, experts_used: int) -> tuple[list[int], float]:
    """What it says, greedily, and the bytes of its last tick."""
    start = {"n_ctx": 256, "n_seq": 1, "speculate": "off"}
    with DrivenEngine(model=model, experts_used=experts_used, **start) as engine:
        sampling = m.Sampling(temperature=0.0, ignore_eos=True)
        tokens = engine.run(
            tokens=PROMPT, n_prompt=len(PROMPT), max_tokens=24, sampling=sampling
        )
        return tokens, engine.table.header.bmt_last_bytes


@pytest.mark.slow
def test_outputs_are_those_of_a_file_with_that_number(tmp_path: Path) -> None:
    four = write_model(tmp_path / "four.gguf", "moe-micro", n_expert_used=4)
    two = write_model(tmp_path / "two.gguf", "moe-micro", n_expert_used=2)
    own, fewer = answer(four, 0), answer(four, 2)
    assert fewer == answer(two, 0)
    assert fewer[0] != own[0]
    assert fewer[1] < own[1]
    assert answer(four, 4) == own


@pytest.mark.parametrize(
    ("keys", "used", "says"),
    [
        ({}, 2, "it is no mixture of experts, and --experts-used is 2; leave that out"),
        ({"expert_count": 4, "expert_used_count": 2}, 5, "it has 4 experts"),
        ({"expert_count": 4, "expert_used_count": 2}, 5, "take 1 to 4"),
        ({"expert_count": 4, "expert_used_count": [2, 1]}, 1, "different numbers of experts"),
        ({"expert_count": 4, "expert_used_count": 2}, 4, ""),
        ({"expert_count": 4, "expert_used_count": 2}, 1, ""),
        ({}, 0, ""),
    ],
)
def test_what_a_model_can_use(tmp_path: Path, keys: dict, used: int, says: str) -> None:
    plain = check_gguf(write_header(tmp_path / "x.gguf", general__architecture="a"))
    more = {f"a.{key}": value for key, value in keys.items()}
    why = why_not_used(replace(plain, metadata=plain.metadata | more), used)
    assert says in why and bool(says) == bool(why)


def test_a_user_is_told_at_the_first_attempt(tmp_path: Path) -> None:
    words = ["--socket", str(tmp_path / "s"), "--experts-used", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "umaserve", *words], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be served: it is no mixture of experts" in done.stderr
    assert "starting another" not in done.stderr
