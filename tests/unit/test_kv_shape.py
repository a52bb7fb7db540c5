"""What a KV cell holds by a header's numbers, and which types and layouts are refused in words."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.config import load_config
from umaserve.models.gguf.header import GGUFError
from umaserve.models.kv_shape import KvKind, KvShape
from umaserve.server.engines.start.model_start import kv_kind

TYPES = ("f16", "q8_0", "q5_1", "q5_0", "q4_0")
BYTES = {"f16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_0": 18 / 32}
HEAD_MAJOR = KvKind("f16", "f16", True)


def shape(architecture: str = "x", **keys: Any) -> KvShape:
    """Of four layers with two heads of 64 values, but for ``keys`` (``__`` for a dot)."""
    plain: dict[str, Any] = {
        "block_count": 4, "attention__head_count": 8, "attention__head_count_kv": 2,
        "embedding_length": 512,
    }  # fmt: skip
    values = {f"{architecture}.{k.replace('__', '.')}": v for k, v in {**plain, **keys}.items()}
    return KvShape.of(architecture, values)


@pytest.mark.parametrize(("k", "v"), list(itertools.product(TYPES, TYPES)))
def test_bytes_of_a_cell_by_type(k: str, v: str) -> None:
    assert shape().bytes_per_cell(KvKind(k, v)) == 4 * 128 * (BYTES[k] + BYTES[v])


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ({}, [(128, 128)] * 4),
        ({"nextn_predict_layers": 1}, [(128, 128)] * 3),
        ({"attention__head_count_kv": [2, 0, 0, 4]}, [(128, 128), (256, 256)]),
        ({"attention__key_length": 96, "attention__value_length": 32}, [(192, 64)] * 4),
        ({"attention__key_length": 96, "attention__key_length_mla": 24}, [(192, 0)] * 4),
        ({"full_attention_interval": 2}, [(128, 128)] * 2),
        ({"attention__recurrent_layers": [True, True, True, False]}, [(128, 128)]),
        ({"attention__shared_kv_layers": 3}, [(128, 128)]),
        ({"attention__key_length_swa": 32, "attention__value_length_swa": 16,
          "attention__sliding_window_pattern": [True, False, True, True]},
         [(64, 32), (128, 128), (64, 32), (64, 32)]),
        ({"attention__head_count": 0}, []),
        ({"attention__causal": False}, []),
    ],
)  # fmt: skip
def test_which_layers_have_cells(keys: dict[str, Any], rows: list[tuple[int, int]]) -> None:
    found = shape(**keys)
    assert list(found.rows) == rows
    assert found.bytes_per_cell(KvKind()) == 2 * sum(k + v for k, v in rows)


def test_families_whose_header_does_not_say_it() -> None:
    assert len(shape("gemma3n", block_count=30).rows) == 20
    assert not shape("grok").flash
    assert shape("deepseek4").one_type


def test_a_transposed_v_is_as_wide_as_the_widest() -> None:
    found = shape(attention__head_count_kv=[1, 0, 2, 4])
    assert found.bytes_per_cell(KvKind()) == 2 * (64 + 128 + 256) * 2
    assert found.bytes_per_cell(HEAD_MAJOR) == 2 * (64 + 128 + 256) + 2 * 3 * 256


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        (shape(), KvKind("q8_0", "q8_0", True), ["V of q8_0", "q8_0:f16 --kv-pack head-major"]),
        (shape("grok"), KvKind("q4_0", "q8_0"), ["without flash", "q4_0:f16 --kv-pack token"]),
        (shape(embedding_length=320), KvKind("q8_0", "f16"),
         ["40 K values", "32 as q8_0", "f16:f16 --kv-pack token-major"]),
        (shape(embedding_length=320), KvKind("q8_0", "f16", True),
         ["40 K values", "f16:f16 --kv-pack head-major"]),
        (shape(attention__value_length=40), KvKind("q8_0", "q4_0"),
         ["40 V values", "32 as q4_0", "q8_0:f16"]),
        (shape(attention__key_length=40), KvKind("q8_0", "q4_0"), ["40 K values", "f16:q4_0"]),
        (shape(attention__key_length_mla=24), KvKind("q8_0", "f16"), ["of one type", "f16:f16"]),
    ],
)  # fmt: skip
def test_a_refusal_says_why_and_what_works(found: KvShape, kind: KvKind, words: list[str]) -> None:
    message = found.why_not(kind)
    assert all(word in message for word in words), message


@given(
    st.sampled_from(("x", "grok", "deepseek4")), st.sampled_from(TYPES), st.sampled_from(TYPES),
    st.booleans(), st.integers(1, 300), st.integers(1, 300), st.booleans(),
)  # fmt: skip
def test_what_a_refusal_proposes_is_taken(
    family: str, k: str, v: str, head_major: bool, key: int, value: int, latent: bool
) -> None:
    """By the daemon's flags as they stand in the message."""
    keys = {"attention__key_length": key, "attention__value_length": value}
    found = shape(family, **keys, **({"attention__key_length_mla": 1} if latent else {}))
    message = found.why_not(KvKind(k, v, head_major))
    if not message:
        return
    flag, kv_type, pack, kv_pack = message.split("; take ")[1].split()
    assert (flag, pack) == ("--kv-type", "--kv-pack")
    proposed = kv_kind(load_config({"kv_type": kv_type, "kv_pack": kv_pack}, {}))
    assert proposed != KvKind(k, v, head_major) and found.why_not(proposed) == ""


def test_a_type_that_nobody_knows() -> None:
    with pytest.raises(GGUFError, match="no KV type 'q9'"):
        shape().bytes_per_cell(KvKind("q9", "f16"))


@pytest.mark.parametrize("value", [-1, 1 << 31, True, 1.5, "4", [], [-1, 2.5], float("nan")])
@pytest.mark.parametrize("name", ["block_count", "attention.head_count", "embedding_length"])
def test_sizes_that_are_no_sizes_count_as_none(name: str, value: Any) -> None:
    assert shape(**{name.replace(".", "__"): value}).bytes_per_cell(KvKind()) == 0


def test_a_header_that_claims_many_layers_makes_no_long_list() -> None:
    assert len(shape(block_count=(1 << 31) - 1).rows) == 4096
