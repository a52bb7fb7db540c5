"""tools/make_model.py: random weights in published shapes, as libllama and `gguf` see them."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import signal
import string
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st

from tests.support.greedy import greedy
from umaserve import llama

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gguf_container as container  # noqa: E402
import gguf_shapes  # noqa: E402
import make_model  # noqa: E402

from tests.support.made_models import library, small, written  # noqa: E402
from umaserve.models.gguf.faults import check_gguf  # noqa: E402

__all__ = ["library"]  # a fixture


@pytest.fixture(scope="module")
def vocab_dir(library: llama.Library) -> Path:
    return library.build.vocab_dir


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        # As published; llama's rope_freqs tensor (32 values) is counted too.
        ("qwen2.5-0.5b", 494_032_768),
        ("llama3.2-1b", 1_235_814_400 + 32),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_published_parameter_counts(
    shape: str, parameters: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_model.main(["--shape", shape, "--dry-run"]) == 0
    assert f"{parameters:,} parameters" in capsys.readouterr().out


def test_the_30b_shape_in_q8_0_takes_34_bytes_for_32_weights() -> None:
    plan = make_model.plan_file(gguf_shapes.SHAPES["qwen3-30b-a3b"], make_model.QUANTS["q8_0"])
    f32 = sum(t.n_elements for t in plan.tensors if t.f32)
    assert plan.data_bytes == (plan.parameters - f32) * 34 // 32 + f32 * 4
    assert len(plan.tensors) == 48 * 12 + 3


@pytest.mark.parametrize("quant", list(make_model.QUANTS))
@pytest.mark.parametrize("shape", ["micro-151k", "moe-micro"])
def test_libllama_loads_and_decodes(
    library: llama.Library, tmp_path: Path, shape: str, quant: str
) -> None:
    out = tmp_path / "model.gguf"
    assert make_model.main(["--shape", shape, "--quant", quant, "--out", str(out)]) == 0
    assert out.stat().st_size == check_gguf(out).file_bytes
    known = gguf_shapes.SHAPES[shape]
    plan = make_model.plan_file(known, make_model.QUANTS[quant])
    with llama.Model.open(library, out) as model:
        assert model.n_vocab == 151_936
        assert model.n_params == plan.parameters
        assert quant.upper() in model.description.upper()
        assert model.chat_template == known.template
        assert model.token_eos == model.tokenize("<|im_end|>")[0]
        text, ended = greedy(model, "Hello world", 24, n_ctx=64)
        assert text and not ended
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("quant", list(make_model.QUANTS))
def test_same_seed_same_bytes(vocab_dir: Path, tmp_path: Path, quant: str) -> None:
    vocab = vocab_dir / "ggml-vocab-gpt-2.gguf"
    paths = [tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        make_model.write_model(small(), quant, path, seed, vocab)
    a, b, c = (file_hash(path) for path in paths)
    assert a == b != c


@pytest.mark.parametrize("quant", list(make_model.QUANTS))
def test_weights_have_the_deviation_asked_for(tmp_path: Path, quant: str) -> None:
    vocab, out = tmp_path / "vocab.gguf", tmp_path / "small.gguf"
    two = struct.pack("<IQ", container.STRING, 2) + container.pack_string("a") * 2
    tokens = {"tokenizer.ggml.tokens": container.Value(container.ARRAY, two)}
    vocab.write_bytes(container.header(tokens, []))
    shape = small(2048)
    make_model.write_model(shape, quant, out, 7, vocab)
    found = {t.name: t for t in gguf.GGUFReader(out).tensors}
    for tensor in gguf_shapes.tensors(shape):
        data = found[tensor.name]
        assert tuple(int(n) for n in data.shape) == tensor.dims
        values = dequantize(data.data, data.tensor_type).reshape(tensor.dims[::-1])
        if tensor.std == 0.0:
            assert (values == 1).all()
            continue
        assert abs(values.std() / tensor.std - 1) < (0.3 if values.size < 100 else 0.08)
        assert abs(values.mean()) < (0.5 if values.size < 100 else 0.1) * tensor.std
    q, other = found["blk.0.attn_q.weight"].data, found["blk.0.attn_output.weight"].data
    assert not np.array_equal(q, other)


def test_no_two_tokens_share_an_embedding() -> None:
    shape, quant = gguf_shapes.SHAPES["micro-151k"], make_model.QUANTS["q8_0"]
    tensor = next(gguf_shapes.tensors(shape))
    assert tensor.name == "token_embd.weight"
    data = b"".join(make_model.tensor_chunks(tensor, 0, quant, {}, 1))
    rows = np.frombuffer(data, np.uint8).reshape(shape.n_vocab, -1)
    # the int8 values alone: equal rows under another scale would tie too
    values = rows.reshape(shape.n_vocab, -1, 34)[:, :, 2:]
    assert len({row.tobytes() for row in values}) == shape.n_vocab


@pytest.mark.parametrize(
    "shape",
    ["micro-151k", "moe-micro", "lfm2-micro", "qwen35-micro", "qwen35moe-micro", "qwen3next-micro",
     "granitehybrid-micro", "gpt-oss-micro", "nemotron-h-micro", "qwen35-mtp-micro",
     "glm4moe-mtp-micro"],
)  # fmt: skip
def test_in_a_chain_the_next_token_has_the_next_id(
    shape: str, library: llama.Library, tmp_path: Path
) -> None:
    with llama.Model.open(library, written(shape, tmp_path / "chain.gguf", "--chain")) as model:
        last = model.tokenize(" then")[-1]
        text, ended = greedy(model, "first this, then", 20)
        pieces = [model.token_to_piece_bytes(last + 1 + i, special=True) for i in range(20)]
        assert (text, ended) == (b"".join(pieces).decode("utf-8", "replace"), False)


def test_a_wrong_chain_has_two_tokens_of_so_many_in_each_others_place() -> None:
    shape = dataclasses.replace(gguf_shapes.SHAPES["micro-151k"], tied=False)
    tensor = next(t for t in gguf_shapes.tensors(shape) if t.name == "output.weight")
    right, wrong = (
        np.frombuffer(
            b"".join(make_model.chain_chunks(tensor, 1, make_model.QUANTS["q8_0"], {}, 1, wrong=n)),
            np.uint8,
        ).reshape(shape.n_vocab, -1)
        for n in (0, 10)
    )
    differ = np.flatnonzero((right != wrong).any(1))
    assert set(differ % 10) == {0, 1} and differ.size >= shape.n_vocab // 10 * 2 - 2
    assert (wrong[50] == right[51]).all() and (wrong[51] == right[50]).all()


def test_a_smaller_vocabulary_is_padded(library: llama.Library, tmp_path: Path) -> None:
    vocab = library.build.vocab_dir / "ggml-vocab-gpt-2.gguf"
    out = tmp_path / "small.gguf"
    make_model.write_model(small(), "q8_0", out, 1, vocab)
    with llama.Model.open(library, out) as model:
        assert model.n_vocab == 50304
        attribute = library.lib.llama_vocab_get_attr(model.vocab, 50303)
        assert attribute == library.lib.LLAMA_TOKEN_ATTR_UNUSED
        text = library.text(library.lib.llama_vocab_get_text(model.vocab, 50303))
        assert text == "[PAD50303]"
        assert model.tokenize("Hello world") == [15496, 995]  # as GPT-2 has always had it


def test_llama_rope_factors_leave_fast_turns_and_stretch_slow_ones() -> None:
    factors = gguf_shapes.rope_factors(gguf_shapes.SHAPES["llama3.2-1b"])
    assert factors.shape == (32,)
    assert factors[0] == 1 and factors[-1] == 32
    assert (np.diff(factors) >= 0).all()


@pytest.mark.parametrize("quant", ["q8_0", "q4_0", "f16"])
@pytest.mark.parametrize("second", [False, True])
def test_a_head_lets_one_half_of_its_input_through(quant: str, second: bool) -> None:
    kind, tensor = make_model.QUANTS[quant], gguf_shapes.Tensor("x", (128, 64), 1.0)
    data = np.frombuffer(make_model.one_half(tensor, kind, second=second), np.uint8)
    blocks = data.reshape(64, 4, kind.block_bytes)
    if quant == "f16":
        values = blocks.view(np.float16).astype(np.float32)
    else:
        scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
        rest = blocks[..., 2:]
        if quant == "q4_0":
            rest = np.concatenate([rest & 15, rest >> 4], axis=-1).astype(np.int32) - 8
        else:
            rest = rest.view(np.int8)
        values = scale * rest
    half = np.eye(64, 128, 64 * second)
    assert np.abs(values.reshape(64, 128) - half).max() < 1e-3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shape", "nano", "--out", "x"], "qwen3-30b-a3b"),
        (["--shape", "moe-micro"], "--out is missing"),
        (["--shape", "moe-micro", "--out", "{tmp}"], "is a directory"),
        (["--shape", "moe-micro", "--out", "{tmp}/none/x.gguf"], "create it first"),
        (["--shape", "moe-micro", "--out", "{tmp}/x", "--vocab-from", "{tmp}"], "is not there"),
        (["--shape", "moe-micro", "--out", "{tmp}/x", "--vocab-from", "{tmp}/text"], "not a GGUF"),
        (["--shape", "moe-micro", "--out", "{tmp}/x", "--vocab-from", "{tmp}/cut"], "truncated"),
        (["--shape", "moe-micro", "--out", "{tmp}/x", "--vocab-from", "{tmp}/no"], "no vocabulary"),
        (["--shape", "moe-micro", "--out", "{tmp}/x", "--seed", "-1"], "--seed"),
        (["--shape", "mamba-micro", "--out", "{tmp}/x", "--chain"], "no chain is known for mamba"),
        (["--shape", "gemma3-micro", "--out", "{tmp}/x", "--chain"], "no chain is known"),
        (["--shape", "moe-micro", "--out", "{tmp}/x", "--chain", "--heads-wrong", "9"], "a shape"),
    ],
)
def test_errors_are_sentences(
    arguments: list[str], says: str, vocab_dir: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "text").write_text("not a model, but long enough to be read as a header")
    whole = (vocab_dir / "ggml-vocab-gpt-2.gguf").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:100_000])
    (tmp_path / "no").write_bytes(container.header({"a": container.Value.of(1)}, []))
    before = sorted(tmp_path.iterdir())
    assert make_model.main([a.replace("{tmp}", str(tmp_path)) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error
    assert sorted(tmp_path.iterdir()) == before


def test_a_vocabulary_that_is_too_large(vocab_dir: Path, tmp_path: Path) -> None:
    vocab = vocab_dir / "ggml-vocab-gpt-2.gguf"
    with pytest.raises(make_model.UserError, match="50257 tokens; small has room for 50000"):
        make_model.write_model(small(50_000), "q8_0", tmp_path / "x.gguf", 1, vocab)


def test_a_disk_too_small_is_refused_before_a_byte_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = SimpleNamespace(total=10**12, used=10**12 - 10**10, free=10**10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    out = tmp_path / "x.gguf"
    assert make_model.main(["--shape", "qwen3-30b-a3b", "--out", str(out)]) == 2
    assert "32.5 GB are needed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    vocab_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.gguf"
    out.write_text("the old file")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(make_model, "tensor_chunks", full)
    vocab = vocab_dir / "ggml-vocab-gpt-2.gguf"
    with pytest.raises(make_model.UserError, match="No space left on device"):
        make_model.write_model(small(), "q8_0", out, 1, vocab)
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]
    assert out.read_text() == "the old file"


def test_it_runs_as_a_script_from_anywhere(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "tools" / "make_model.py")]
    for arguments, status in ((["--help"], 0), (["--shape", "moe-micro", "--dry-run"], 0)):
        done = subprocess.run([*program, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status and done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(
    vocab_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    # Large enough that it is far from done when the first bytes are seen.
    running = subprocess.Popen(
        [
            sys.executable, str(ROOT / "tools" / "make_model.py"), "--shape", "llama3.2-1b",
            "--quant", "f16", "--out", str(tmp_path / "x.gguf"), "--vocab-from", str(vocab_dir),
        ],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(tmp_path.glob(".x.gguf.*.part")) and running.poll() is None:
        time.sleep(0.005)
    running.send_signal(number)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 130 and "nothing was written" in error
    assert not list(tmp_path.iterdir())


_KEYS = st.text(string.ascii_lowercase + "._", min_size=1, max_size=20)
_SCALARS = st.one_of(
    st.booleans(), st.integers(0, 2**32 - 1), st.floats(width=32, allow_nan=False), st.text()
)


@given(
    st.dictionaries(_KEYS, st.one_of(_SCALARS, st.lists(st.text(max_size=9), max_size=9))),
    st.lists(st.integers(0, 5), max_size=5),
)
def test_what_is_written_is_read_back(values: dict, sizes: list[int]) -> None:
    keys = {}
    for key, value in values.items():
        if isinstance(value, list):
            empty = container.Value(container.ARRAY, struct.pack("<IQ", container.STRING, 0))
            packed = b"".join(container.pack_string(text) for text in value)
            keys[key] = empty.extended(len(value), packed)
        else:
            keys[key] = container.Value.of(value)
    infos = [(f"t{i}", (n + 1,), 0, 4 * n + 4) for i, n in enumerate(sizes)]
    head = container.header(keys, infos)
    assert len(head) % container.ALIGNMENT == 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(head)
        again = container.read_metadata(path)
    assert list(again) == list(keys)
    for key, value in values.items():
        if isinstance(value, list):
            assert again[key].strings() == [text.encode() for text in value]
            assert again[key].array_length() == len(value)
        else:
            assert again[key].scalar() == value
