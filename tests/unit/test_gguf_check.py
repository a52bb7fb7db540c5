"""The header check that stands between a user's file and libllama."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.assets import demo_model_path
from umaserve.engine.model import capacity
from umaserve.llama import memory_needed
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFError
from umaserve.models.kv_shape import KvKind
from umaserve.wire import messages as m


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def small_gguf(
    *,
    version: int = 3,
    architecture: str | None = "llama",
    tensors: tuple[tuple[str, tuple[int, ...], int, int], ...] = (
        ("a.weight", (64, 2), 8, 0),
        ("b.weight", (32,), 0, 160),
    ),
    keys: tuple[bytes, ...] = (),
    layers: int = 3,
    tokens: tuple[str, ...] = ("x", "yz"),
    data: int = 288,
) -> bytes:
    """A whole GGUF: an 8-bit tensor of 64x2 (136 bytes), 32 floats, a few keys."""
    entries = list(keys)
    if architecture is not None:
        entries.append(text("general.architecture") + struct.pack("<I", 8) + text(architecture))
    entries += [
        text("llama.block_count") + struct.pack("<II", 4, layers),
        text("llama.embedding_length") + struct.pack("<II", 4, 64),
        text("llama.attention.head_count") + struct.pack("<II", 4, 4),
        text("llama.attention.head_count_kv") + struct.pack("<II", 4, 2),
        text("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, len(tokens))
        + b"".join(map(text, tokens)),
        text("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.5, 1.5),
    ]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries)
    for name, shape, kind, offset in tensors:
        head += text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)
    return head + b"\0" * (-len(head) % 32) + b"\0" * data


@pytest.fixture
def write(tmp_path: Path):
    def write(data: bytes, name: str = "m.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def test_a_whole_file_passes(write) -> None:
    info = check_gguf(write(small_gguf()))
    assert info.architecture == "llama"
    assert len(info.tensors) == 2
    assert info.tensor_bytes == 136 + 128
    assert info.metadata["llama.block_count"] == 3
    assert info.metadata["tokenizer.ggml.scores"] == [0.5, 1.5]
    assert info.array_lengths["tokenizer.ggml.tokens"] == 2


def test_a_changed_file_is_read_again(write) -> None:
    path = write(small_gguf())
    assert check_gguf(path).metadata["llama.block_count"] == 3
    write(small_gguf(layers=4, data=320))
    assert check_gguf(path).metadata["llama.block_count"] == 4


def test_the_bundled_model_passes() -> None:
    info = check_gguf(demo_model_path())
    assert info.architecture == "llama"
    assert 0 < info.tensor_bytes < info.file_bytes == demo_model_path().stat().st_size


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"GG", "text file"),
        (b"hello, this is prose\n", "it is a text file"),
        (b"\xff\xfe\x00\x01" * 200, "instead of b'GGUF'"),
        (b"PK\x03\x04rest", "PyTorch"),
        (
            b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"__metadata__":{"format":"pt"}}',
            "it is a Hugging Face checkpoint (safetensors); umaserve takes GGUF: ",
        ),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"lmgg" + bytes(40), "older than GGUF"),
        (b"GGUF", "truncated"),
        (small_gguf(version=1), "GGUF version 1"),
        (small_gguf(version=9), "GGUF version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (small_gguf(architecture=None), "no general.architecture"),
        (small_gguf()[:-1], "tensor b.weight would end at byte"),
        (small_gguf()[:-1], "is truncated: 100% of it are there"),
        (small_gguf()[:150], "truncated"),
        (small_gguf(tensors=(("t", (4,), 99, 0),)), "unknown type 99"),
        (small_gguf(tensors=(("t", (33,), 8, 0),)), "blocks of 32"),
        (small_gguf(tensors=(("t", (4,) * 5, 0, 0),)), "5 dimensions"),
        (small_gguf(tensors=(("t", (4,), 0, 7),)), "multiple of 32"),
        (small_gguf(tensors=(("t", (1 << 62,), 0, 0),)), "truncated"),
        (small_gguf(tensors=(("t", (4,), 0, 0), ("t", (4,), 0, 32))), "two tensors"),
        (small_gguf(keys=(text("k") + struct.pack("<I", 77),)), "unknown type 77"),
        (small_gguf(keys=(text("k") + struct.pack("<IIQ", 9, 8, 1 << 60),)), "claims"),
        (small_gguf(keys=(text("k") + struct.pack("<IQ", 8, 1 << 60),)), "length of"),
        (
            small_gguf(keys=(text("general.alignment") + struct.pack("<II", 4, 24),)),
            "no power of two",
        ),
        (
            small_gguf(
                keys=(
                    text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, -1.0),
                )
            ),
            "epsilon is -1.0",
        ),
        (small_gguf(layers=0), "claims to have 0 layers"),
        (small_gguf(layers=513), "claims to have 513 layers"),
        (small_gguf(tokens=("a", "b", "a\0c", "", "")), "1 entries of its vocabulary"),
        (
            small_gguf(keys=(text("llama.expert_count") + struct.pack("<II", 4, 8),)),
            "0 of 8 experts",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0) + bytes(100),
            f"{1 << 60} tensors",
        ),
    ],
)  # fmt: skip
def test_damage_is_named(write, data: bytes, message: str) -> None:
    path = write(data)
    with pytest.raises(GGUFError, match=re.escape(message)) as caught:
        check_gguf(path)
    assert str(path) in str(caught.value)


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def words(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def real(key: str, value: float) -> bytes:
    return text(key) + struct.pack("<If", 6, value)


def numbers(key: str, *values: int) -> bytes:
    return text(key) + struct.pack(f"<IIQ{len(values)}I", 9, 4, len(values), *values)


def entry(name: str, kind: int, shape: tuple[int, ...] = (64, 2)) -> dict[str, object]:
    return {"tensors": ((name, shape, kind, 0),), "data": 8 * 128}


BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
HEADS_OF = {"embedding_length": 64, "attention.head_count": 4}


def of(architecture: str, **more: int) -> dict[str, object]:
    """A model of another architecture: four heads of 16 values unless `more` says otherwise."""
    values = {**HEADS_OF, **{name.replace("__", "."): value for name, value in more.items()}}
    keys = tuple(number(f"{architecture}.{name}", value) for name, value in values.items())
    return {"architecture": architecture, "keys": keys}


# Each of these ended libllama, hung it, or made it take memory that no weight stands for.
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": (words("llama.rope.scaling.type", "x"),)}, "scales positions by 'x'"),
        ({"keys": (number("llama.nextn_predict_layers", 4),)}, "4 of its 3 layers make drafts"),
        (of("t5", decoder_block_count=513), "513 decoder layers"),
        ({"keys": (number("llama.expert_group_count", 2),)}, "0 of 2 groups of its 0 experts"),
        (of("x", expert_count=8, expert_used_count=2, expert_group_count=8), "8 groups of its 8"),
        (of("x", expert_count=8, expert_used_count=2, expert_group_count=3), "3 groups of its 8"),
        (
            of("x", expert_count=8, expert_used_count=2, expert_group_count=4,
               expert_group_used_count=4),
            "4 of 4 groups",
        ),
        (
            {"keys": (real("llama.attention.group_norm_epsilon", math.inf),)},
            "epsilon is inf",
        ),
        ({"keys": (number("llama.rope.dimension_count", 18),)}, "rotate 18 of the 16 values"),
        ({"keys": (number("llama.rope.dimension_count", 7),)}, "rotate 7 of the 16 values"),
        (
            of("gemma3", rope__dimension_count_swa=34, attention__key_length_swa=32),
            "rotate 34 of the 32 values",
        ),
        (of("x", attention__sliding_window=1 << 28), f"a sliding window of {1 << 28}"),
        ({"keys": (numbers("llama.attention.sliding_window_pattern"),)}, "no layer is in it"),
        (of("qwen2", attention__key_length=32), "its keys have 32 values and its values 16"),
        (of("qwen2", attention__key_length=0), "its keys have 0 values and its values 16"),
        (of("qwen2", rope__dimension_count=8), "rotate 8 of the 16 values"),
        (of("gpt2", attention__head_count=3), "3 heads of 21 values do not make the 64"),
        (
            of("qwen2", attention__head_count=2, attention__key_length=16,
               attention__value_length=16),
            "2 heads of 16 values do not make the 64",
        ),
        (of("jamba", ssm__inner_size=64), "64 values wide, not twice 64"),
        (of("granitehybrid", ssm__inner_size=64), "64 values wide, not twice 64"),
        (
            of("qwen35moe", ssm__inner_size=64, ssm__state_size=16, ssm__time_step_rank=2),
            "64 values wide, not 2 heads of 16",
        ),
        (
            of("x", attention__key_length=1 << 20),
            f"keep {4 << 20} values of a token in a layer, and its widest weight gives 64",
        ),
        (
            of("x", attention__value_length=1 << 20, attention__head_count_kv=2),
            f"keep {2 << 20} values of a token in a layer",
        ),
        (entry("blk.0.ffn_down.weight", 27), "has the type i64"),
        (entry("output.weight", 9), "has the type q8_1"),
        (entry("blk.0.ffn_down.weight", 26), "has the type i32"),
        (entry("blk.0.attn_norm.weight", 8), "has the type 8, and llama.cpp keeps it in float32"),
        (entry("blk.0.attn_q.bias", 2, (64,)), "has the type 2, and"),
        (
            {"keys": (words("tokenizer.ggml.model", "rwkv"),), "tokens": ("a", r"\xc3\xa4", "\\n")},
            r"begin with the byte b'\\xc3'",
        ),
        (
            {"keys": (words("tokenizer.ggml.model", "llama"),),
             "tokens": tuple(t for t in BYTES if t != "<0xC3>")},
            "tokens for bytes and none for the byte 0xc3",
        ),
        (entry("blk.0.ssm_d", 27), "has the type i64"),
    ],
)  # fmt: skip
def test_numbers_that_libllama_does_not_bear(write, changes: dict, message: str) -> None:
    with pytest.raises(GGUFError, match=message.replace("(", r"\(")):
        check_gguf(write(small_gguf(**changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": (words("llama.rope.scaling.type", "yarn"),)},
        {"keys": (number("llama.rope.dimension_count", 16),)},
        of("x", rope__dimension_count=0),  # of layers that do not rotate
        of("x", attention__key_length=48, attention__value_length=32, attention__head_count_kv=1),
        of("deepseek2", attention__head_count=128, attention__head_count_kv=1,
           attention__key_length=64, attention__value_length=32, rope__dimension_count=32),
        of("mamba2", attention__head_count=0, rope__dimension_count=0),
        of("x", expert_count=8, expert_used_count=2, expert_group_count=4,
           expert_group_used_count=2),
        entry("d2t", 27),
        entry("blk.0.ffn_gate_tid2eid.weight", 26),
        entry("blk.0.attn_norm.weight", 30),
        {"keys": (words("tokenizer.ggml.model", "llama"),), "tokens": ("a", "b")},
        {"keys": (words("tokenizer.ggml.model", "llama"),), "tokens": BYTES},
        {
            "keys": (words("tokenizer.ggml.model", "llama"),),
            "tokens": (*(t for t in BYTES if t != "<0x09>"), "\t"),
        },
        {"keys": (words("tokenizer.ggml.model", "rwkv"),), "tokens": ("ab", "a", r"\t", r"\tb")},
    ],
)  # fmt: skip
def test_numbers_that_models_have(write, changes: dict) -> None:
    assert check_gguf(write(small_gguf(**changes))).tensors


def test_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="does not exist"):
        check_gguf(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="is a directory"):
        check_gguf(tmp_path)
    (tmp_path / "model.gguf").write_bytes(small_gguf())
    with pytest.raises(GGUFError, match=r"it holds model\.gguf"):
        check_gguf(tmp_path)
    with pytest.raises(GGUFError, match="not a regular file"):
        check_gguf("/dev/null")


def split_part(number: int, count: int) -> bytes:
    keys = (text("split.count") + struct.pack("<IH", 2, count),)
    return small_gguf(keys=keys, architecture="llama" if number == 1 else None)


def test_a_split_model_needs_all_its_files(write, tmp_path: Path) -> None:
    first = write(split_part(1, 2), "big-00001-of-00002.gguf")
    with pytest.raises(GGUFError, match="lacks big-00002-of-00002.gguf"):
        check_gguf(first)
    second = write(split_part(2, 2), "big-00002-of-00002.gguf")
    assert check_gguf(first).tensor_bytes == 2 * (136 + 128)
    with pytest.raises(GGUFError, match="give the first"):
        check_gguf(second)


def test_memory_needed_counts_weights_and_cells(write) -> None:
    path = write(small_gguf())
    need = memory_needed(path, n_ctx=10)
    # three layers, two KV heads of 16 values, K and V, two bytes a value
    assert need.kv_bytes == 10 * 3 * 2 * 16 * 2 * 2
    assert need.weight_bytes == 136 + 128
    halved = memory_needed(path, n_ctx=10, kind=KvKind("q8_0", "q4_0"))
    assert halved.kv_bytes == 10 * 3 * (34 + 18)
    with pytest.raises(GGUFError, match="no KV type 'q9'"):
        memory_needed(path, n_ctx=10, kind=KvKind("q9"))


def test_states_of_recurrent_layers_count(write) -> None:
    small = of("mamba2", ssm__inner_size=64, ssm__state_size=16, ssm__conv_kernel=4,
               ssm__group_count=1, block_count=3)  # fmt: skip
    need = memory_needed(write(small_gguf(**small)), n_ctx=10)
    assert need.state_bytes == 3 * (64 * 16 + 3 * (64 + 2 * 16)) * 4
    large = of("mamba2", ssm__inner_size=1 << 20, ssm__state_size=1 << 20, block_count=3)
    path = write(small_gguf(**large))
    start = m.Start(model_path=str(path), n_slots=1, n_ctx=64, n_seq=2)
    assert "for the states of 3 sequences" in capacity.why_no_memory(start)


def test_weights_that_cannot_be_mapped(write) -> None:
    found = {}
    for length in range(3):
        keys = (number("general.alignment", 1), words("x.pad", "z" * length))
        info = check_gguf(write(small_gguf(keys=keys), f"{length}.gguf"))
        for use_mmap in (True, False):
            start = m.Start(str(info.path), n_slots=1, n_ctx=64, n_seq=1, use_mmap=use_mmap)
            found[info.data_offset % 32 > 0, use_mmap] = capacity.why_no_mapping(start, info)
    assert "--no-mmap" in found.pop((True, True)) and not any(found.values())


_WHOLE = small_gguf()


@settings(max_examples=400)
@given(
    st.lists(
        st.tuples(st.integers(0, len(_WHOLE) - 289), st.binary(min_size=1, max_size=9)), max_size=4
    ),
    st.integers(0, len(_WHOLE)),
)
def test_any_header_is_a_model_or_a_gguf_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], length: int
) -> None:
    data = bytearray(_WHOLE)
    for position, new in changes:
        data[position : position + len(new)] = new
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    path.write_bytes(bytes(data[:length]) if length % 3 == 0 else bytes(data))
    try:
        info = check_gguf(path)
        memory_needed(path, n_ctx=64)
    except GGUFError as error:
        assert str(error)
    else:
        assert info.tensor_bytes <= info.file_bytes


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic(tmp_path_factory: pytest.TempPathFactory, rest: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + rest)
    with pytest.raises(GGUFError):
        check_gguf(path)
