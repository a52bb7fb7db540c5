"""Ticks of a few tokens on a processor, which are filled up with tokens of nobody's."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.made_models import written
from tests.support.oracle import Oracle
from tests.support.patches.engine_spies import spied_filled_ticks
from umaserve.assets import demo_model_path
from umaserve.policy.cost.model import TILED
from umaserve.policy.cost.prediction import FILLED_FROM
from umaserve.wire import messages as m

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
LONG = [300 + i % 90 for i in range(200)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        shape: str(written(f"{shape}-micro", folder / f"{shape}.gguf", "--quant", "f16"))
        for shape in ("gemma3", "qwen2vl", "lfm2")
    }
    return {"demo": str(demo_model_path()), **made}


@pytest.mark.parametrize("name", ["demo", "gemma3", "qwen2vl", "lfm2"])
def test_a_filled_tick_gives_the_same_answers_and_leaves_no_cell(
    models: dict[str, str], tmp_path: Path, name: str
) -> None:
    seen, spied = tmp_path / "seen", partial(spied_filled_ticks, path=str(tmp_path / "seen"))
    judge = Oracle(1024, models[name])
    with DrivenEngine(
        model=models[name], patch=spied, n_ctx=1024, n_batch=len(LONG), probe=False,
        prefill_threads=0,
    ) as engine:  # fmt: skip
        for more in (20, 5, TILED - 1, 30):
            few = [*range(400, 400 + more)]
            for prompt in (LONG, [*LONG, *few], few):
                serial = engine.submit(
                    tokens=prompt, n_prompt=len(prompt), max_tokens=6, sampling=GREEDY
                )
                engine.wait(serial)
                judge.assert_followed(prompt, engine.generated(serial))
                engine.release(serial)
    judge.close()
    ticks = [json.loads(line) for line in seen.read_text().splitlines()]
    assert all(left == -1 for _, _, left in ticks)
    assert all(tokens + filled == TILED for tokens, filled, _ in ticks if filled)
    lengths = {tokens for tokens, filled, _ in ticks if filled}
    if name == "lfm2":  # its rows are computed apart
        assert not lengths
    else:
        assert {20, TILED - 1, 30} == lengths, "five tokens are too few"
        assert 5 < FILLED_FROM <= 20
