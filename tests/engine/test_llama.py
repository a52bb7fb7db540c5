"""The helpers over libllama, against the bundled model and llama.cpp's own vocabularies."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import build_llama
from tests.support.small_models import write_model
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.llama import model as llama_model
from umaserve.models.gguf.faults import GGML_TYPES, check_gguf
from umaserve.models.kv_shape import KV_TYPES, KvKind


@pytest.fixture(scope="module")
def library() -> llama.Library:
    build_llama.ensure_binding(build_llama.select() or build_llama.ensure())
    return llama.load()


@pytest.fixture(scope="module")
def model(library: llama.Library) -> Iterator[llama.Model]:
    with llama.Model.open(library, demo_model_path()) as model:
        yield model


@pytest.fixture(scope="module", params=["qwen2", "llama-spm", "llama-bpe"])
def vocabulary(library: llama.Library, request: pytest.FixtureRequest) -> Iterator[llama.Model]:
    path = library.build.vocab_dir / f"ggml-vocab-{request.param}.gguf"
    with llama.Model.open(library, path, vocab_only=True) as model:
        yield model


def test_importing_loads_neither_numpy_nor_cffi() -> None:
    program = (
        "import sys, umaserve.llama as llama, umaserve.llama.builds as builds\n"
        "from umaserve.models.gguf.faults import check_gguf\n"
        "builds.installed()\n"
        "heavy = ('numpy', 'cffi', '_cffi_backend', 'numba')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_what_a_model_says_of_itself(model: llama.Model) -> None:
    assert model.metadata["general.architecture"] == "llama"
    assert model.n_vocab == int(model.metadata["llama.vocab_size"])
    assert model.n_ctx_train == int(model.metadata["llama.context_length"])
    assert model.size_bytes == check_gguf(model.path).tensor_bytes
    assert 1_000_000 < model.n_params < 20_000_000
    assert "llama" in model.description
    assert model.chat_template is not None and "messages" in model.chat_template
    assert 0 <= model.token_eos < model.n_vocab
    assert model.eog_mask()[model.token_eos] == 1


def test_metadata_longer_than_the_first_buffer(model: llama.Model) -> None:
    assert model.metadata["tokenizer.chat_template"] == model.chat_template


def test_the_piece_table_is_what_token_to_piece_says(vocabulary: llama.Model) -> None:
    offsets, data = vocabulary.piece_table()
    assert offsets.dtype == np.int32 and data.dtype == np.uint8
    assert offsets[0] == 0 and offsets[-1] == len(data)
    lib = vocabulary.library.lib
    step = max(1, vocabulary.n_vocab // 3000)
    for token in range(0, vocabulary.n_vocab, step):
        piece = data[offsets[token] : offsets[token + 1]].tobytes()
        assert piece == vocabulary.token_to_piece_bytes(token, special=False)
        if lib.llama_vocab_is_control(vocabulary.vocab, token):
            assert piece == b""


def test_tokens_without_text_have_names(vocabulary: llama.Model) -> None:
    pieces, _ = vocabulary.piece_table()
    offsets, data = vocabulary.piece_table(hidden=True)
    hidden = np.flatnonzero(np.diff(offsets))
    assert (np.diff(pieces)[hidden] == 0).all()
    for token in hidden[:300].tolist():
        name = data[offsets[token] : offsets[token + 1]].tobytes()
        special = vocabulary.token_to_piece_bytes(token, special=True)
        assert name == special or not special
    control = vocabulary.library.lib.llama_vocab_is_control
    for token in np.flatnonzero(np.diff(pieces) == 0).tolist():
        assert token in hidden or not control(vocabulary.vocab, token)


def test_the_eog_mask_is_what_the_vocabulary_says(vocabulary: llama.Model) -> None:
    mask = vocabulary.eog_mask()
    is_eog = vocabulary.library.lib.llama_vocab_is_eog
    assert mask.sum() >= 1
    assert [bool(m) for m in mask] == [is_eog(vocabulary.vocab, t) for t in range(len(mask))]


def render(model: llama.Model, tokens: list[int]) -> bytes:
    return b"".join(model.token_to_piece_bytes(token, special=True) for token in tokens)


@settings(max_examples=150)
@given(text=st.text(max_size=200))
def test_tokens_render_the_text_again(model: llama.Model, text: str) -> None:
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    assert render(model, tokens) == text.encode("utf-8", "replace")


@pytest.mark.parametrize("text", ["a\0b", "\0", "\0\0x", "", "日本語 🎉", "x" * 10_000])
def test_texts_that_are_easily_cut(library: llama.Library, text: str) -> None:
    path = library.build.vocab_dir / "ggml-vocab-qwen2.gguf"
    with llama.Model.open(library, path, vocab_only=True) as model:
        tokens = model.tokenize(text, add_special=False)
        assert render(model, tokens) == text.encode()


def test_control_tokens_are_parsed_only_where_asked(library: llama.Library) -> None:
    path = library.build.vocab_dir / "ggml-vocab-qwen2.gguf"
    with llama.Model.open(library, path, vocab_only=True) as model:
        start = model.tokenize("<|im_start|>", add_special=False, parse_special=True)
        assert len(start) == 1
        assert len(model.tokenize("<|im_start|>", add_special=False, parse_special=False)) > 1
        assert model.token_to_piece_bytes(start[0], special=True) == b"<|im_start|>"
        assert model.token_to_piece_bytes(start[0]) == b""


def test_a_lone_surrogate_is_no_crash(model: llama.Model) -> None:
    assert render(model, model.tokenize("a\ud800b", add_special=False)) == b"a?b"


def test_more_tokens_than_bytes_make_libllama_ask_for_room(vocabulary: llama.Model) -> None:
    """What `tokenize` does about it rests on this answer."""
    lib, ffi = vocabulary.library.lib, vocabulary.library.ffi
    text = b"hello world"
    need = lib.llama_tokenize(vocabulary.vocab, text, len(text), ffi.NULL, 0, True, True)
    assert -need == len(vocabulary.tokenize("hello world"))


def test_tokenizing_in_many_threads_at_once(model: llama.Model) -> None:
    texts = [f"def f{i}(x):\n    return x + {i}\n" * 20 for i in range(40)]
    alone = [model.tokenize(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(model.tokenize, texts * 5)) == alone * 5


def test_a_token_out_of_range(model: llama.Model) -> None:
    for token in (-1, model.n_vocab):
        with pytest.raises(ValueError, match="is not in 0"):
            model.token_to_piece_bytes(token)


def test_a_file_that_libllama_refuses_says_why(library: llama.Library, tmp_path: Path) -> None:
    whole = demo_model_path().read_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(llama.ModelLoadError, match="is truncated"):
        llama.Model.open(library, path)
    other = whole.replace(b"general.architecture", b"general.architecturf", 1)
    path.write_bytes(other)
    with pytest.raises(llama.ModelLoadError, match="no general.architecture"):
        llama.Model.open(library, path)
    # The header is whole, so this one reaches libllama, which misses a tensor.
    path.write_bytes(whole.replace(b"token_embd.weight", b"tokem_embd.weight"))
    with pytest.raises(
        llama.ModelLoadError, match=r"loaded: tensor 'token_embd\.weight' not found"
    ):
        llama.Model.open(library, path)
    at = whole.index(b"general.architecture") + len(b"general.architecture") + 4 + 8
    path.write_bytes(whole[:at] + b"xlama" + whole[at + 5 :])
    with pytest.raises(llama.ModelLoadError, match="xlama"):
        llama.Model.open(library, path)


def test_what_is_no_model_at_all(library: llama.Library, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a model\n")
    for path, message in ((text, "text file"), (tmp_path, "directory"), (tmp_path / "x", "exist")):
        with pytest.raises(llama.ModelLoadError, match=message):
            llama.Model.open(library, path)


def test_progress_is_reported_and_can_stop_the_load(library: llama.Library) -> None:
    seen: list[float] = []

    def note(fraction: float) -> bool:
        seen.append(fraction)
        return True

    llama.Model.open(library, demo_model_path(), progress=note).close()
    assert seen == sorted(seen) and seen[-1] == 1.0
    with pytest.raises(llama.ModelLoadError, match="was stopped"):
        llama.Model.open(library, demo_model_path(), progress=lambda fraction: False)


def test_what_progress_raises_comes_out(library: llama.Library) -> None:
    def fail(fraction: float) -> bool:
        raise LookupError("from the callback")

    with pytest.raises(LookupError, match="from the callback"):
        llama.Model.open(library, demo_model_path(), progress=fail)


@pytest.mark.parametrize("mmap", [True, False])
def test_greedy_decoding_through_the_shim(model: llama.Model, mmap: bool) -> None:
    with llama.Model.open(model.library, demo_model_path(), use_mmap=mmap) as own:
        assert greedy(own, "def fibonacci(n):\n", 12) == greedy(model, "def fibonacci(n):\n", 12)


def greedy(model: llama.Model, prompt: str, count: int) -> list[int]:
    lib, ffi = model.library.lib, model.library.ffi
    with llama.Context.open(model, n_ctx=256, n_batch=256, n_threads=2) as context:
        feed, position, out = model.tokenize(prompt), 0, []
        for _ in range(count):
            tokens = ffi.new("llama_token[]", feed)
            batch = ffi.new("struct llama_batch *")
            batch.n_tokens, batch.token = len(feed), tokens
            assert lib.uma_decode(context.pointer, batch) == 0
            logits = lib.llama_get_logits_ith(context.pointer, -1)
            row = np.frombuffer(ffi.buffer(logits, 4 * model.n_vocab), np.float32)
            position += len(feed)
            feed = [int(row.argmax())]
            out += feed
        assert context.seq_pos_max(0) == position - 1
        assert context.seq_rm(0, position - 2)
        assert context.seq_pos_max(0) == position - 3
        assert context.seq_rm(0)
        assert context.seq_pos_max(0) == -1
    return out


def test_a_context_is_what_was_asked_for(model: llama.Model) -> None:
    with llama.Context.open(
        model, n_ctx=512, n_batch=128, n_ubatch=64, n_seq_max=4, n_threads=1, type_k="q8_0"
    ) as context:
        assert (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max) == (
            512, 128, 64, 4,
        )  # fmt: skip
        assert context.address != 0
        context.set_threads(2, 1)
        lib = model.library.lib
        assert lib.llama_n_threads(context.pointer) == 2
        assert lib.llama_n_threads_batch(context.pointer) == 1


def test_contexts_that_cannot_be(model: llama.Model) -> None:
    with pytest.raises(llama.ContextError, match="no KV type 'q9'"):
        llama.Context.open(model, n_ctx=256, type_k="q9")
    with pytest.raises(llama.ContextError, match="no field 'n_contexts'"):
        llama.Context.open(model, n_ctx=256, n_contexts=3)
    with pytest.raises(llama.ContextError, match="n_ctx cannot be -1"):
        llama.Context.open(model, n_ctx=-1)
    with pytest.raises(llama.ContextError, match="could be made: .*[Ff]lash"):
        llama.Context.open(model, n_ctx=256, type_v="q8_0", flash_attn=False)


def test_memory_needed_is_what_libllama_allocates(model: llama.Model) -> None:
    library = model.library
    for type_k, type_v in (("f16", "f16"), ("q8_0", "q4_0")):
        mark = library.log_position()
        with llama.Context.open(model, n_ctx=1024, type_k=type_k, type_v=type_v):
            log = "\n".join(library.log_lines(mark))
        allocated = sum(float(x) for x in re.findall(r"KV buffer size = +([\d.]+) MiB", log))
        need = llama.memory_needed(model.path, n_ctx=1024, kind=KvKind(type_k, type_v))
        assert need.kv_bytes / (1 << 20) == pytest.approx(allocated, abs=0.01)


def test_block_sizes_are_those_of_ggml(library: llama.Library) -> None:
    lib = library.lib
    of_ggml = {
        number: (lib.ggml_blck_size(number), lib.ggml_type_size(number))
        for number in range(lib.GGML_TYPE_COUNT)
        if lib.ggml_blck_size(number)
    }
    assert of_ggml == GGML_TYPES
    for name, number in KV_TYPES.items():
        assert library.text(lib.ggml_type_name(number)) == name


def test_devices(library: llama.Library) -> None:
    found = llama.devices(library)
    cpu = [device for device in found if device["type"] == "cpu"]
    assert len(cpu) == 1
    assert cpu[0]["memory_total"] > 1 << 30


def test_the_log_is_kept_and_printed_nowhere(
    library: llama.Library, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = library.log_position()
    llama.Model.open(library, demo_model_path()).close()
    lines = library.log_lines(mark)
    assert any("llama_model_loader" in line for line in lines)
    assert capfd.readouterr() == ("", "")
    assert library.log_lines(library.log_position()) == []
    assert library.last_error(library.log_position()) == ""


def test_the_log_keeps_its_newest_lines(library: llama.Library) -> None:
    for _ in range(12):
        llama.Model.open(library, demo_model_path()).close()
    lines = library.log_lines()
    assert 100 < len("\n".join(lines)) <= 65536
    assert lines == library.log_lines(0)


def test_closing_twice(model: llama.Model) -> None:
    own = llama.Model.open(model.library, demo_model_path())
    context = llama.Context.open(own, n_ctx=256)
    for _ in range(2):
        context.close()
        own.close()


@pytest.mark.parametrize("shape", ["demo", "mamba-micro", "jamba-micro", "lfm2-micro"])
def test_amx_lays_out_no_weights_that_several_sequences_share(
    library: llama.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Its kernels read beyond them where a batch has several sequences of a recurrent state."""
    path = demo_model_path() if shape == "demo" else Path(write_model(tmp_path / "m", shape))
    monkeypatch.setattr(llama_model, "_has_amx", lambda _: True)
    assert llama_model._may_repack(library, path) == (shape == "demo")
    monkeypatch.setattr(llama_model, "_has_amx", lambda _: False)
    assert llama_model._may_repack(library, path)


def test_an_unknown_backend_build_is_named(library: llama.Library) -> None:
    missing = [name for name in ("hip", "cuda", "metal") if build_llama.select(name) is None]
    with pytest.raises(llama.NotBuilt, match=f"--backend {missing[0]}"):
        llama.load(missing[0])
