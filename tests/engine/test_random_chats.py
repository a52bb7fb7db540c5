"""Random chats over every kind of memory, while engines are killed and texts come from disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.oracle import Oracle
from tests.support.random_chats import RandomChats
from tests.support.small_models import gguf_shapes, write_model

KINDS = {
    "plain": "micro-151k",
    "M-RoPE": "qwen2vl-micro",
    "windows": "gemma3-micro",
    "recurrent": "mamba2-micro",
    "hybrid": "jamba-micro",
    "hybrid with M-RoPE": "qwen35-micro",
    "mixture": "moe-micro",
}
MORE = {
    "mixture with windows": "gpt-oss-micro",
    "hybrid mixture": "granitehybrid-micro",
    "hybrid mixture with M-RoPE": "qwen35moe-micro",
    "hybrid mixture without M-RoPE": "qwen3next-micro",
    "hybrid with MLP layers": "nemotron-h-micro",
    "hybrid with convolutions": "lfm2-micro",
    "recurrent, Mamba 1": "mamba-micro",
}
DRAFTS = ("plain", "M-RoPE", "mixture")  # of which chats this short have drafts for sure
SMALL = {"vocab": "llama-spm", "n_vocab": 32000, "end_of_turn": "</s>"}
ALL = {"n_expert": 4, "n_expert_used": 4}  # a choice of experts differs with the batch
NARROW = {"n_embd": 128, "head_dim": 32, "n_ff": 256}  # where there are heads
SHORT, LONG = 100, 240  # steps
WAYS = [
    *[pytest.param(kind, SHORT, marks=pytest.mark.timeout(180)) for kind in KINDS],
    *[
        pytest.param(kind, LONG, marks=[pytest.mark.slow, pytest.mark.timeout(600)])
        for kind in [*KINDS, *MORE]
    ],
]


class Written(dict[str, str]):
    """Paths of models by their shapes; a model is written when it is asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, shape: str) -> str:
        known = gguf_shapes.SHAPES[shape]
        changes = SMALL | (NARROW if known.n_head else {}) | (ALL if known.n_expert else {})
        path = write_model(self._folder / f"{shape}.gguf", shape, quant="f16", **changes)
        self[shape] = path
        return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(("kind", "steps"), WAYS)
def test_random_chats_are_right_with_every_kind_of_memory(
    models: Written, tmp_path: Path, kind: str, steps: int
) -> None:
    shape = {**KINDS, **MORE}[kind]
    judge = Oracle(512, models[shape])
    chats = RandomChats(models[shape], tmp_path, judge, steps)
    try:
        chats.run(steps)
    finally:
        chats.end()
        judge.close()
    seen = chats.seen
    assert seen["answers"] > steps // 5 and seen["kills"] and seen["restarts"]
    assert seen["preemptions"] and seen["cache_hits"]
    assert steps == SHORT or seen["known from disk"]
    assert kind not in DRAFTS or seen["draft_accepted"]
