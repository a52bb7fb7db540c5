"""Files that make neither text nor embeddings: refused at once, in words, by the real engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.small_models import vocabulary_file, write_header, write_model
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.purpose import why_no_model

ENCODER_DECODER = "it is an encoder-decoder model (t5)"


def refused(model: str | Path) -> str:
    engine = DrivenEngine(model=str(model), expect_failure=True, n_ctx=256)
    assert engine.close() == 3  # the status that the front does not answer with another attempt
    return engine.failure


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"general__architecture": "llama", "general__type": "adapter"}, "a LoRA adapter; name"),
        # older ones have no general.type
        ({"general__architecture": "llama", "adapter__type": "lora"}, "a LoRA adapter; name"),
        ({"general__architecture": "clip", "general__type": "mmproj"}, "name the language model"),
        ({"general__architecture": "clip"}, "name the language model"),
        ({"general__architecture": "controlvector"}, "a control vector; name the model"),
        ({"general__architecture": "llama", "general__type": "imatrix"}, "an importance matrix"),
        ({"general__architecture": "eagle3"}, "it is a draft model (eagle3)"),
        ({"general__architecture": "dflash"}, "it is a draft model (dflash)"),
    ],
)
def test_what_the_header_tells(tmp_path: Path, keys: dict, says: str) -> None:
    path = write_header(tmp_path / "x.gguf", **keys)
    assert says in why_no_model(check_gguf(path))
    assert says in refused(path)


def test_a_vocabulary_alone() -> None:
    assert "it has no weights" in refused(vocabulary_file("gpt-2"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "arch", "says"),
    [
        ("t5-micro", "t5", ENCODER_DECODER),
        ("micro-151k", "dream", "it is a diffusion model (dream)"),
    ],
)
def test_what_only_libllama_knows(tmp_path: Path, shape: str, arch: str, says: str) -> None:
    path = write_model(tmp_path / "x.gguf", shape, arch=arch)
    assert why_no_model(check_gguf(path)) == ""
    assert says in refused(path)


def test_models_that_generate_or_embed_are_not_refused(tmp_path: Path) -> None:
    for shape in ("mamba-micro", "jamba-micro", "gemma3-micro", "bert-micro"):
        path = write_model(tmp_path / f"{shape}.gguf", shape)
        assert why_no_model(check_gguf(path)) == ""


def test_a_user_is_told_at_the_first_attempt(tmp_path: Path) -> None:
    model = write_model(tmp_path / "t5.gguf", "t5-micro")
    done = subprocess.run(
        [sys.executable, "-m", "umaserve", "--socket", str(tmp_path / "s"), "--model", model],
        capture_output=True, text=True, timeout=60, env={**os.environ, "UMA_N_CTX": "256"},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"error: {model} cannot be served: {ENCODER_DECODER}" in done.stderr
    assert "starting another" not in done.stderr
