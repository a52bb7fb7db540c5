"""Settings crossed with each other, on every family of models, with the real library.

An engine serves or says why not: no combination ends the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.settings_runner import TOKENS, outcome
from tests.support.small_models import write_model
from umaserve.wire import table as t

pytestmark = pytest.mark.slow

Ask = Callable[..., dict[str, Any]]

FAMILIES = ("demo", "mamba", "mamba2", "jamba", "lfm2", "gemma3", "gpt2")
KV_TYPES = ("f16", "q8_0", "q5_1", "q5_0", "q4_0")
SIZES = (1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 256, 511, 4096, 1 << 20)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Return a function that has an engine with these settings made, used and ended."""
    folder = tmp_path_factory.mktemp("families")
    models = {name: write_model(folder / name, f"{name}-micro") for name in FAMILIES[1:]}
    narrow = {"n_head_kv": 1, "head_dim": 16}
    models["narrow"] = write_model(folder / "narrow", "gemma3-micro", **narrow)
    odd = {"n_head_kv": 2, "head_dim": 48}  # whole blocks together, but not each
    models["odd"] = write_model(folder / "odd", "gemma3-micro", **odd)

    def ask(model: str = "demo", **start: Any) -> dict[str, Any]:
        if model != "demo":
            start["model"] = models[model]
        return outcome(start)

    return ask


def served(answer: dict[str, Any]) -> bool:
    ends = answer.get("ends")
    return bool(ends) and answer["status"] == 0 and all(
        end == (t.REASON_LENGTH, TOKENS) for end in ends
    )  # fmt: skip


@st.composite
def starts(draw: st.DrawFn) -> dict[str, Any]:
    """What a user can ask for: the configuration refuses head-major with another V than f16."""
    model = draw(st.sampled_from(FAMILIES))
    head_major = draw(st.booleans())
    return {
        "model": model,
        "n_ctx": draw(st.sampled_from((16, 17, 100, 255, 256, 257, 1000, 2048, 4097))),
        "n_seq": draw(st.sampled_from((1, 2, 8, 9, 31, 33, 255, 256))),
        "n_slots": draw(st.sampled_from((1, 2, 6, 300))),
        "n_batch": draw(st.sampled_from((0, *SIZES))),
        "n_ubatch": draw(st.sampled_from((0, *SIZES))),
        "head_major": head_major,
        "type_k": draw(st.sampled_from(KV_TYPES)),
        "type_v": "f16" if head_major else draw(st.sampled_from(KV_TYPES)),
        "n_threads": draw(st.sampled_from((1, 1, 1, 1, 3))),
        "sampling_threads": draw(st.sampled_from((-1, 0, 2))),
        "prefill_threads": draw(st.sampled_from((-1, 0, 1))),
        "gpu_layers": draw(st.sampled_from((-1, 0, 1, 999))),
        "use_mmap": draw(st.booleans()),
        "use_mlock": draw(st.booleans()),
        "pretouch": draw(st.booleans()),
        "max_merge": draw(st.sampled_from((0, 1, 3))),
        "probe": draw(st.booleans()),  # in pauses, which requests end
    }


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(start=starts())
@example(start={"n_batch": 8})
@example(start={"n_batch": 9})
@example(start={"n_batch": 1, "n_ubatch": 1})
@example(start={"n_ctx": 16, "n_seq": 32})
@example(start={"n_ctx": 16, "n_seq": 256, "n_slots": 300})
@example(start={"model": "gpt2", "n_ctx": 4097, "n_batch": 4096, "n_ubatch": 4096})
def test_any_combination_serves(ask: Ask, start: dict[str, Any]) -> None:
    answer = ask(**start)
    assert served(answer), answer


@pytest.mark.parametrize("head_major", [False, True])
@pytest.mark.parametrize("types", [("q8_0", "f16"), ("f16", "q8_0"), ("q4_0", "q4_0")])
@pytest.mark.parametrize("model", ["narrow", "odd"])
def test_a_model_whose_heads_are_no_whole_blocks_of_the_kv_type(
    ask: Ask, model: str, types: tuple[str, str], head_major: bool
) -> None:
    """With V head by head, libllama serves such a model, and what it computes are no numbers."""
    answer = ask(model, type_k=types[0], type_v=types[1], head_major=head_major)
    assert answer["status"] == 3, answer
    assert "--kv-type f16" in answer["refused"]
