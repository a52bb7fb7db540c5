"""Predicted bytes of a recurrent state: as many as libllama saves, of each family."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_models import gguf_shapes, write_model
from umaserve import llama
from umaserve.llama.memory import state_bytes_per_sequence
from umaserve.models.gguf import check_gguf

MICRO = [
    name for name, shape in gguf_shapes.SHAPES.items()
    if name.endswith("-micro") and (shape.ssm or shape.arch == "lfm2")
]  # fmt: skip
HEAD = 128  # bytes of a saved state that are no numbers of layers


@pytest.mark.parametrize("shape", MICRO)
def test_a_recurrent_state_takes_the_bytes_that_are_predicted(tmp_path: Path, shape: str) -> None:
    path = write_model(tmp_path / "model.gguf", shape)
    library = llama.load()
    lib, ffi = library.lib, library.ffi
    with (
        llama.Model.open(library, path, n_gpu_layers=0) as model,
        llama.Context.open(model, n_ctx=256, n_batch=8, n_ubatch=8, n_threads=1) as context,
    ):
        tokens = ffi.new("llama_token[]", [40, 41, 42])
        assert lib.llama_decode(context.pointer, lib.llama_batch_get_one(tokens, 3)) == 0
        saved = context.state_seq_size(0, partial=True)
    predicted = state_bytes_per_sequence(check_gguf(path))
    assert predicted <= saved <= predicted + HEAD
