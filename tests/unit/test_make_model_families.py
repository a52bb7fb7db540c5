"""tools/make_model.py: the families beside plain decoders, and any pre-tokenizer's name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.greedy import greedy
from tests.support.made_models import container, library, make_model, small, written
from umaserve import llama

__all__ = ["library"]  # a fixture


# llama.cpp's word for each: recurrent, hybrid, sliding window
@pytest.mark.parametrize(
    ("shape", "recurrent", "hybrid", "window"),
    [
        ("mamba-micro", True, False, 0),
        ("mamba2-micro", True, False, 0),
        ("jamba-micro", False, True, 0),
        ("lfm2-micro", False, True, 0),
        ("qwen35-micro", False, True, 0),
        ("qwen35moe-micro", False, True, 0),
        ("qwen3next-micro", False, True, 0),
        ("granitehybrid-micro", False, True, 0),
        ("gpt-oss-micro", False, False, 64),
        ("nemotron-h-micro", False, True, 0),
        ("gemma3-micro", False, False, 64),
        ("gpt2-micro", False, False, 0),
    ],
)
def test_families_that_generate(
    library: llama.Library, tmp_path: Path, shape: str, recurrent: bool, hybrid: bool, window: int
) -> None:
    out = written(shape, tmp_path / "model.gguf")
    with llama.Model.open(library, out) as model:
        pointer, lib = model.pointer, library.lib
        assert lib.llama_model_is_recurrent(pointer) == recurrent
        assert lib.llama_model_is_hybrid(pointer) == hybrid
        assert lib.llama_model_n_swa(pointer) == window
        # longer than the window, and another text after another prompt: the state is read
        texts = [greedy(model, prompt, 80, n_ctx=256) for prompt in ("Hello world", "Another")]
        assert texts[0] != texts[1]
        assert all(text and not ended for text, ended in texts)
        assert len(set(model.tokenize(texts[0][0]))) > 20  # not one token again and again


def decoded(model: llama.Model, *, encode: list[int], decode: list[int]) -> np.ndarray:
    """What comes out for the last of *decode*, or of *encode* where that is empty."""
    lib, ffi = model.library.lib, model.library.ffi
    embeddings = not decode
    with llama.Context.open(model, n_ctx=64, n_batch=64, n_threads=2) as context:
        lib.llama_set_embeddings(context.pointer, embeddings)
        for function, tokens in ((lib.llama_encode, encode), (lib.llama_decode, decode)):
            if tokens:
                batch = lib.llama_batch_get_one(ffi.new("llama_token[]", tokens), len(tokens))
                assert function(context.pointer, batch) == 0
        if embeddings:
            row, n = lib.llama_get_embeddings_seq(context.pointer, 0), 128
        else:
            row, n = lib.llama_get_logits_ith(context.pointer, -1), model.n_vocab
        return np.frombuffer(ffi.buffer(row, 4 * n), np.float32).copy()


def test_an_encoder_only_model_embeds(library: llama.Library, tmp_path: Path) -> None:
    with llama.Model.open(library, written("bert-micro", tmp_path / "model.gguf")) as model:
        found = [
            decoded(model, encode=model.tokenize(text), decode=[]) for text in ("Hello", "Other")
        ]
    assert all(np.isfinite(row).all() and row.any() for row in found)
    assert not np.allclose(*found)


def test_an_encoder_decoder_model_reads_what_was_encoded(
    library: llama.Library, tmp_path: Path
) -> None:
    with llama.Model.open(library, written("t5-micro", tmp_path / "model.gguf")) as model:
        assert library.lib.llama_model_has_encoder(model.pointer)
        assert library.lib.llama_model_has_decoder(model.pointer)
        start = library.lib.llama_model_decoder_start_token(model.pointer)
        found = [
            decoded(model, encode=model.tokenize(text), decode=[start])
            for text in ("Hello", "Other")
        ]
    assert all(np.isfinite(row).all() for row in found)
    assert not np.allclose(*found)


@pytest.mark.slow
def test_any_name_of_a_pre_tokenizer_is_written(library: llama.Library, tmp_path: Path) -> None:
    vocab = library.build.vocab_dir / "ggml-vocab-gpt-2.gguf"
    found = {}
    for name in ("gpt-2", "gpt-4o"):
        make_model.write_model(small(), "q8_0", tmp_path / name, 1, vocab, name)
        with llama.Model.open(library, tmp_path / name) as model:
            assert model.metadata["tokenizer.ggml.pre"] == name
            found[name] = model.tokenize("2000 20000 200000 12!!\n\n  x")
    assert found["gpt-2"] != found["gpt-4o"]  # the one named splits the text
    make_model.write_model(small(), "q8_0", tmp_path / "none", 1, vocab, "no-such-thing")
    with pytest.raises(llama.ModelLoadError, match="no-such-thing"):
        llama.Model.open(library, tmp_path / "none")
    out = written("bert-micro", tmp_path / "x.gguf", "--pre", "gpt-4o")
    assert container.read_metadata(out)["tokenizer.ggml.pre"].scalar() == "gpt-4o"
