"""What a load warns of: read by people, and nothing where nothing is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import low_memory_lock_limit
from tests.support.small_models import write_header, write_model
from umaserve import llama
from umaserve.engine.model import load_warnings
from umaserve.models.gguf.faults import check_gguf
from umaserve.wire import messages as m

pytestmark = pytest.mark.slow

def told(**start: Any) -> list[str]:
    """Warnings and errors until the engine is ready."""
    with DrivenEngine(n_ctx=start.pop("n_ctx", 1024), probe=False, **start) as engine:
        logs = [x for x in engine._inbox if isinstance(x, m.Log)]
        return [log.text for log in logs if log.level in ("warn", "error")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for shape in ("micro-151k", "mamba-micro", "gemma3-micro"):
        write_model(folder / shape, shape)
    return folder


@pytest.mark.parametrize("shape", ["", "micro-151k", "gemma3-micro"])
def test_a_usual_start_is_silent(models: Path, shape: str) -> None:
    assert told(model=str(models / shape) if shape else None, n_ctx=8192) == []


def test_weights_that_cannot_be_locked() -> None:
    (text,) = told(use_mlock=True, patch=low_memory_lock_limit)
    assert text.startswith("--mlock: the weights are not all locked in memory")
    assert "`ulimit -l` is 64 KiB: raise it" in text
    (text,) = told(use_mlock=True, use_mmap=False, patch=low_memory_lock_limit)
    assert text.startswith("--mlock: ")


def test_a_file_without_a_pre_tokenizer(models: Path) -> None:
    (text,) = told(model=str(models / "mamba-micro"))
    assert "names no pre-tokenizer" in text and "convert the model" in text


def test_layers_for_an_accelerator_that_is_not_there() -> None:
    if any(device["type"] in ("gpu", "igpu") for device in llama.devices(llama.load())):
        pytest.skip("there is an accelerator")
    (text,) = told(gpu_layers=20)
    assert text.startswith("--gpu-layers 20: there is no accelerator")
    assert told(gpu_layers=0) == told(gpu_layers=-1) == []


def test_cells_that_no_session_can_use(models: Path) -> None:
    (text,) = told(model=str(models / "gemma3-micro"), n_ctx=8192, n_seq=2)
    assert "trained for 2048 positions" in text and "2 at once (--parallel) use 4096" in text
    assert told(model=str(models / "gemma3-micro"), n_ctx=0, n_positions=2048, n_seq=2) == []


def test_a_model_for_embeddings_that_can_generate(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_header(path, general__architecture="qwen3", qwen3__pooling_type=3)
    info = check_gguf(path)
    (log,) = load_warnings.of_settings(m.Start("x.gguf", 1, 64, 1), info, "CPU")
    assert log.level == "warn" and "made for embeddings or ranking" in log.text


def test_lines_of_libllama() -> None:
    lines = [
        "llama_context: n_ctx_seq (9) > n_ctx_train (8) -- possible training context overflow",
        "load: control-looking token: 128247 '</s>' was not control-type; this is probably a bug",
        "load:", "load: ****", "load: GENERATION QUALITY WILL BE DEGRADED!",
        "model has unused tensor blk.4.x (size = 12 bytes) -- ignoring",
        "llama_kv_cache: something that nobody has seen yet",
        "llama_kv_cache: something that nobody has seen yet",
        "init_mappings: Falling back to buffered IO due to No such device",
    ]  # fmt: skip
    found = load_warnings.of_library(lines)
    assert [log.text for log in found if log.level == "warn"] == [
        "libllama warns: something that nobody has seen yet",
        "libllama warns: Falling back to buffered IO due to No such device",
    ]
    assert len([log for log in found if log.level == "debug"]) == 4
