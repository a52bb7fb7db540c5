"""Predicted bytes of recurrent states: as many as libllama saves and allocates, of each family."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.small_models import RECURRENT, write_model
from umaserve import llama
from umaserve.llama.memory import state_shape
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.states import GO_BACK

HEAD = 128  # bytes of a saved state that are no numbers of layers
MIB = 1 << 20


@pytest.mark.parametrize("shape", RECURRENT)
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
        mark = library.log_position()
        with llama.Context.open(model, n_ctx=256, n_seq_max=5, n_rs_seq=3, n_threads=1) as several:
            log = "\n".join(library.log_lines(mark))
            earlier = lib.llama_n_rs_seq(several.pointer)
    predicted = state_shape(info := check_gguf(path))
    assert predicted.n_bytes <= saved <= predicted.n_bytes + HEAD
    assert earlier == 3 * (info.architecture in GO_BACK)
    allocated = sum(float(x) for x in re.findall(r"RS buffer size = +([\d.]+) MiB", log))
    assert predicted.total(5 * (1 + earlier)) / MIB == pytest.approx(allocated, abs=0.01)
