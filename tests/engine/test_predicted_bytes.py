"""Memory that the front predicts for a model: all that its engine reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.small_models import RECURRENT, write_model
from umaserve.assets import demo_model_path
from umaserve.config import Config
from umaserve.llama.memory import state_shape
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.needs import ENGINE_BYTES, look_at
from umaserve.models.states import GO_BACK, RESERVED, SNAPSHOT_SHARE, SNAPSHOTS
from umaserve.server.engines.start.model_start import Need, memory_of, start_message
from umaserve.wire import messages as m

OTHERS = [
    "micro-151k", "moe-micro", "glm4moe-mtp-micro", "qwen3-rank-micro", "bert-micro", "gpt2-micro",
]  # fmt: skip


def ready_of(path: str, config: Config, role: str = "") -> tuple[m.Ready, Need]:
    """What an engine reports that is started as the front starts it, and the front's prediction.

    Not the engine's own memory, and the weights as libllama counts them.
    """
    file = look_at(path)
    need = memory_of(file, config, role)
    fields = msgspec.structs.asdict(start_message(config, file, role, need))
    with DrivenEngine(model=fields.pop("model_path"), **fields) as engine:
        ready = engine.ready
    return ready, need._replace(n_bytes=need.n_bytes - ENGINE_BYTES - file.size + ready.model_bytes)


@pytest.fixture
def config() -> Config:
    return Config(n_ctx=512, n_seq=3, max_sessions=4, threads=1, mmproj="off")


@pytest.mark.parametrize("shape", [*RECURRENT, *OTHERS])
def test_the_front_predicts_what_an_engine_reports(
    tmp_path: Path, config: Config, shape: str
) -> None:
    path = write_model(tmp_path / "model.gguf", shape)
    ready, need = ready_of(path, config)
    states = state_shape(info := check_gguf(path))
    earlier = max(SNAPSHOTS) * (info.architecture in GO_BACK)
    assert need.earlier_states == earlier
    assert ready.state_bytes == states.total((config.n_seq + RESERVED) * (1 + earlier))
    assert (ready.state_bytes > 0) == (shape in RECURRENT)
    assert (ready.draft_bytes > 100 << 20) == ("mtp" in shape), "heads have cells and buffers"
    assert need.n_bytes == ready.memory_bytes


def test_texts_that_are_encoded_have_a_state_each(tmp_path: Path, config: Config) -> None:
    path = write_model(tmp_path / "model.gguf", "qwen35-micro")
    ready, need = ready_of(path, config, "embed")
    assert not ready.generates and ready.state_bytes == 64 * state_shape(check_gguf(path)).n_bytes
    assert need.n_bytes == ready.memory_bytes


def test_models_memory_bounds_the_earlier_states(tmp_path: Path, config: Config) -> None:
    """An engine does not know it, so the front says how many there may be."""
    path = write_model(tmp_path / "model.gguf", "qwen35-micro")
    least = memory_of(look_at(path), replace(config, speculate="off")).n_bytes
    states = state_shape(check_gguf(path)).total(config.n_seq + RESERVED)
    for earlier in (3, 0):
        room = states * earlier * SNAPSHOT_SHARE
        ready, need = ready_of(path, replace(config, models_memory=least + room))
        assert need.earlier_states == earlier
        assert ready.state_bytes == states * (1 + earlier)
        assert need.n_bytes == ready.memory_bytes


def test_a_draft_model_counts(config: Config) -> None:
    path = str(demo_model_path())
    both = replace(config, speculate="draft", draft_model=path)
    ready, need = ready_of(path, both)
    assert ready.draft_bytes == ready.model_bytes + ready.kv_bytes
    assert need.n_bytes == ready.memory_bytes
    assert memory_of(look_at(path), both, "embed") == memory_of(look_at(path), config, "embed")
