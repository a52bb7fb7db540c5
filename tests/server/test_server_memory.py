"""What the front reads from a model file before it starts an engine with it."""

from __future__ import annotations

import math
import struct
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.assets import demo_model_path
from umaserve.config import Config
from umaserve.models import needs as memory
from umaserve.models.gguf.header import GGUFError
from umaserve.models.kv_shape import KvKind, KvShape
from umaserve.models.needs import ModelFile, look_at
from umaserve.models.states import StateShape
from umaserve.server.engines.start.model_start import (
    Need,
    memory_of,
    start_message,
    too_big,
    why_not_served,
)


def test_shape_of_the_bundled_model_equals_gguf_reader() -> None:
    path = demo_model_path()
    found = look_at(str(path))
    fields = gguf.GGUFReader(path).fields

    def number(name: str) -> int:
        (key,) = [k for k in fields if k.endswith("." + name)]
        return int(fields[key].contents())

    width = number("embedding_length") // number("attention.head_count")
    assert found.size == path.stat().st_size
    values = number("attention.head_count_kv") * width
    assert found.cells.rows == ((values, values),) * number("block_count")


def test_kv_bytes_by_hand() -> None:
    model = ModelFile("m", 1000, KvShape(((128, 128),) * 24))
    assert model.kv_bytes(4096, KvKind()) == 4096 * 24 * 128 * 4
    assert model.kv_bytes(4096, KvKind("q8_0", "q4_0")) == 4096 * 24 * (4 * 34 + 4 * 18)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "is empty"), (b"Once upon", "is a text file"), (b"GGUF\x09" + bytes(30), "version 9")],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=why):
        look_at(str(path))


@settings(max_examples=150)
@given(st.data())
def test_damaged_headers_are_an_error_or_a_guess_and_never_a_crash(data: st.DataObject) -> None:
    whole = bytearray(demo_model_path().read_bytes()[:4000])
    for _ in range(data.draw(st.integers(0, 5))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(cut)
        file.flush()
        try:
            assert look_at(file.name).size == len(cut)
        except GGUFError as error:
            assert file.name in str(error)


def test_all_files_of_a_split_model_count(tmp_path: Path) -> None:
    whole = demo_model_path().read_bytes()
    first, second = (tmp_path / f"x-0000{n}-of-00003.gguf" for n in (1, 2))
    first.write_bytes(whole)
    second.write_bytes(bytes(1000))
    assert look_at(str(first)).size == len(whole) + 1000, "the third is missing"


def packed(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def header(*entries: bytes) -> bytes:
    name = packed("general.architecture", 8, struct.pack("<Q", 1) + b"x")
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries) + 1) + name + b"".join(entries)


@pytest.mark.parametrize(
    "value",
    [
        (6, struct.pack("<f", math.nan)),
        (6, struct.pack("<f", math.inf)),
        (12, struct.pack("<d", -math.inf)),
        (5, struct.pack("<i", -1)),
        (7, b"\1"),
        (9, struct.pack("<IQf", 6, 1, math.nan)),
        (9, struct.pack("<IQ", 4, 0)),
    ],
)
@pytest.mark.parametrize(
    "name",
    ["block_count", "attention.head_count", "attention.head_count_kv", "embedding_length"],
)
def test_sizes_that_are_no_sizes_count_as_none(
    tmp_path: Path, name: str, value: tuple[int, bytes]
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(header(packed(f"x.{name}", *value)))
    assert look_at(str(path)).kv_bytes(4096, KvKind()) == 0


def test_a_header_is_read_within_the_memory_that_its_file_has(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(header(packed("x.name", 8, struct.pack("<Q", 1 << 24))))
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match="truncated"):
            look_at(str(path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_long_is_not_held(tmp_path: Path) -> None:
    """Numbers, texts, and a text of which the beginning is kept; what comes after is read."""
    text = struct.pack("<Q", 8_000_000) + b"x" * 8_000_000
    path = tmp_path / "x.gguf"
    path.write_bytes(
        header(
            packed("x.table", 9, struct.pack("<IQ", 4, 2_000_000) + b"\xff" * 8_000_000),
            packed("x.words", 9, struct.pack("<IQ", 8, 2) + text + text),
            packed("x.name", 8, text),
            packed("x.context_length", 4, struct.pack("<I", 7)),
        )
    )
    tracemalloc.start()
    try:
        assert look_at(str(path)).n_ctx_train == 7
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_arrays_too_long_for_layers_are_passed_over(tmp_path: Path) -> None:
    layers = packed("x.context_length", 4, struct.pack("<I", 7))
    path = tmp_path / "x.gguf"
    long = packed("x.table", 9, struct.pack("<IQ", 4, 2_000_000) + b"\xff" * 8_000_000)
    path.write_bytes(header(long, layers))
    assert look_at(str(path)).n_ctx_train == 7
    path.write_bytes(header(packed("x.table", 9, struct.pack("<IQ", 4, 1 << 62)), layers))
    with pytest.raises(GGUFError, match="truncated"):
        look_at(str(path))
    # so many texts that they would take seconds: what is known by then has to do
    path.write_bytes(header(layers, packed("x.texts", 9, struct.pack("<IQ", 8, 1 << 40))))
    assert look_at(str(path)).n_ctx_train == 7


def test_model_beyond_the_machine_is_refused() -> None:
    assert memory.total_bytes() >= memory.available_bytes() > 0
    huge = ModelFile("m", memory.total_bytes() + 1)
    assert "this machine has" in too_big(huge, Config())
    assert too_big(huge, Config(backend="cuda")) == ""
    assert too_big(ModelFile("m", 1), Config()) == ""


def test_kv_cells_that_cannot_be_are_refused_before_an_engine_starts() -> None:
    narrow = ModelFile("m.gguf", 1, KvShape(((16, 16),), ((16, 16),)))
    assert why_not_served(narrow, Config()) == ""
    refusal = why_not_served(narrow, Config(kv_type_k="q8_0"))
    assert refusal.startswith("m.gguf cannot be served: ") and "--kv-type f16:f16" in refusal


def test_recurrent_states_are_read_from_a_header(tmp_path: Path) -> None:
    sizes = {"block_count": 2, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.conv_kernel": 4}
    path = tmp_path / "x.gguf"
    path.write_bytes(header(*(packed(f"x.{k}", 4, struct.pack("<I", n)) for k, n in sizes.items())))
    assert look_at(str(path)).states == StateShape(2 * (64 * 16 + 3 * 64) * 4)


def test_states_of_all_sequences_count_in_the_memory_of_a_model() -> None:
    config = Config(n_seq=7, n_ctx=4096, mmproj="off")
    plain = memory_of(ModelFile("m", 1000), config).n_bytes
    assert memory_of(ModelFile("m", 1000, states=StateShape(10)), config) == Need(plain + 80)
    encoder = ModelFile("m", 1000, role="embed", states=StateShape(10, goes_back=True))
    assert memory_of(encoder, config) == Need(plain + 640)
    assert memory_of(replace(encoder, role=""), config, "embed") == Need(plain + 640)


def test_earlier_states_take_an_eighth_of_what_is_left() -> None:
    model, plain = ModelFile("m", 1000, states=StateShape(10, goes_back=True)), ModelFile("m", 1000)
    config = Config(n_seq=7, n_ctx=4096, mmproj="off")
    least = memory_of(plain, config).n_bytes + 80
    for room, earlier in ((8 * 7 * 80, 7), (8 * 7 * 80 - 1, 3), (8 * 80, 1), (8 * 80 - 1, 0)):
        bounded = replace(config, models_memory=least + room)
        need = memory_of(model, bounded)
        assert need == Need(least + 80 * earlier, earlier, 80 * earlier)
        assert need.least == Need(least)
        assert start_message(bounded, model, need=need).earlier_states == earlier
    without = replace(bounded, models_memory=1 << 40, speculate="off")
    assert memory_of(model, without) == Need(least)
    # what the engine finds free decides where the user set no bound
    assert start_message(config, model, need=memory_of(model, config)).earlier_states == -1


def test_a_refusal_says_what_recurrent_states_take() -> None:
    total = memory.total_bytes()
    text = too_big(ModelFile("m", 1, states=StateShape(total // 8)), Config(n_seq=8))
    assert f"KV cache for --n-ctx 4096, {memory.gib(total // 8 * 9)} recurrent states)" in text
