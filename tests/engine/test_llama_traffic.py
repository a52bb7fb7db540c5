"""The traffic constants against sums over the files' tensors, read by the ``gguf`` package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import gguf
import numpy as np
import pytest

from umaserve.assets import demo_model_path
from umaserve.llama.memory import kv_bytes_per_cell
from umaserve.llama.traffic import Traffic

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import make_model  # noqa: E402
from gguf_shapes import SHAPES  # noqa: E402

from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFInfo, GGUFTensor

VOCABULARY = 8192  # instead of 151936, which the reader below takes ten seconds for


def made(shape: str, folder: Path, quant: str = "q8_0") -> Path:
    path = folder / f"{shape}.gguf"
    small = replace(SHAPES[shape], n_vocab=VOCABULARY)
    make_model.write_model(small, quant, path, seed=1, vocab=demo_model_path())
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shapes")
    return {
        "demo": demo_model_path(),
        "micro": made("micro-151k", folder),
        "moe": made("moe-micro", folder),
    }


@lru_cache
def tensors(path: Path) -> dict[str, tuple[tuple[int, ...], int]]:
    """Shape and bytes by tensor, as a reader that shares no code with ours sees them."""
    return {
        t.name: (tuple(map(int, t.shape)), int(t.n_bytes)) for t in gguf.GGUFReader(path).tensors
    }


def sizes(path: Path) -> dict[str, int]:
    return {name: size for name, (_, size) in tensors(path).items()}


@pytest.mark.parametrize("name", ["demo", "micro", "moe"])
def test_the_header_lists_every_tensor(files: dict[str, Path], name: str) -> None:
    info = check_gguf(files[name])
    assert {t.name: (t.shape, t.n_bytes) for t in info.tensors} == tensors(files[name])


@pytest.mark.parametrize("name", ["demo", "micro", "moe"])
def test_every_byte_of_the_file_has_one_place(files: dict[str, Path], name: str) -> None:
    found = sizes(files[name])
    traffic = Traffic.of(check_gguf(files[name]))
    untied = "output.weight" in found
    apart = found["token_embd.weight"] if untied else 0
    weights = traffic.dense + traffic.head + traffic.n_expert * traffic.expert + apart
    assert weights == sum(found.values())


@pytest.mark.parametrize("name", ["demo", "micro"])
def test_a_dense_model(files: dict[str, Path], name: str) -> None:
    found = sizes(files[name])
    traffic = Traffic.of(check_gguf(files[name]))
    blocks = sum(size for tensor, size in found.items() if tensor.startswith("blk."))
    rest = found.get("rope_freqs.weight", 0)
    assert traffic.dense == blocks + rest
    head = found.get("output.weight", found["token_embd.weight"])
    assert traffic.head == head + found["output_norm.weight"]
    assert traffic.n_expert == traffic.n_expert_used == traffic.expert == 0.0


def test_the_numbers_of_the_micro_shape(files: dict[str, Path]) -> None:
    traffic = Traffic.of(check_gguf(files["micro"]))
    row = 256 // 32 * 34  # one row of 256 values in q8_0
    assert traffic.embedding == row
    assert traffic.head == VOCABULARY * row + 256 * 4
    assert traffic.logits == VOCABULARY * 4
    assert traffic.kv_cell == 4 * 2 * 2 * 64 * 2  # layers, K and V, heads, values, bytes
    assert traffic.kv_exact == 1.0
    assert (
        Traffic.of(check_gguf(files["micro"]), type_k="q8_0", type_v="q8_0").kv_cell
        == 4 * 2 * 128 // 32 * 34
    )
    # q, output: 256 in and out; k, v: 256 and 128; gate, up, down: 256 and 768
    assert traffic.activation == 4 * 4 * (2 * 512 + 2 * 384 + 3 * 1024)
    assert traffic.mask_cell == 2 * (1 + 4)


def test_a_mixture_of_experts(files: dict[str, Path]) -> None:
    found = sizes(files["moe"])
    traffic = Traffic.of(check_gguf(files["moe"]))
    experts = sum(size for tensor, size in found.items() if "_exps." in tensor)
    assert (traffic.n_expert, traffic.n_expert_used) == (16.0, 4.0)
    assert traffic.expert == experts / 16
    routers = sum(size for tensor, size in found.items() if "ffn_gate_inp" in tensor)
    assert 0 < routers < traffic.dense
    one = 256 + 128  # one expert's matrix, in and out
    attention = 2 * 512 + 2 * 384 + 256 + 16  # the router too
    assert traffic.activation == 4 * 4 * (attention + 4 * 3 * one)


def test_another_number_of_experts(files: dict[str, Path]) -> None:
    info = check_gguf(files["moe"])
    own, two = Traffic.of(info), Traffic.of(info, experts_used=2)
    assert two.n_expert_used == 2.0
    assert own.activation - two.activation == 4 * 4 * (2 * 3 * (256 + 128))
    same = {"n_expert_used": own.n_expert_used, "activation": own.activation}
    assert two._replace(**same) == own
    assert Traffic.of(check_gguf(files["micro"]), experts_used=2).n_expert_used == 0.0


def header(*tensors: tuple[str, tuple[int, ...]], **keys: object) -> GGUFInfo:
    """A header with 16-bit tensors, as `check_gguf` would return it."""
    entries = []
    for name, shape in tensors:
        count = 1
        for n in shape:
            count *= n
        entries.append(GGUFTensor(name, shape, 1, 2 * count))
    metadata: dict[str, object] = {
        "a.block_count": 2,
        "a.embedding_length": 64,
        "a.attention.head_count": 4,
        "a.attention.head_count_kv": 2,
    }
    metadata |= {f"a.{key}": value for key, value in keys.items()}
    total = sum(t.n_bytes for t in entries)
    return GGUFInfo(Path("m.gguf"), "a", metadata, {}, total, total, 0, tuple(entries))


EMBEDDING = ("token_embd.weight", (64, 100))
HEAD = ("output.weight", (64, 100))


def test_an_output_matrix_of_its_own_leaves_the_token_table_out() -> None:
    block = ("blk.0.attn_q.weight", (64, 64))
    tied = Traffic.of(header(EMBEDDING, block))
    untied = Traffic.of(header(EMBEDDING, block, HEAD))
    assert tied == untied
    assert tied.head == 12800 and tied.dense == 8192 and tied.embedding == 128


def test_shared_experts_are_dense() -> None:
    traffic = Traffic.of(
        header(
            EMBEDDING,
            ("blk.0.ffn_up_shexp.weight", (64, 32)),
            ("blk.0.ffn_norm_exps.weight", (64,)),
            ("blk.1.ffn_gate_up_exps.weight", (64, 32, 8)),
            ("blk.1.ffn_down_exps.bias", (64, 8)),
            expert_count=8,
            expert_used_count=2,
        )
    )
    assert traffic.dense == 2 * (64 * 32 + 64)
    assert traffic.expert == 2 * (64 * 32 + 64)
    assert (traffic.n_expert, traffic.n_expert_used) == (8.0, 2.0)


def test_what_decoding_never_reads_is_left_out() -> None:
    plain = Traffic.of(header(EMBEDDING, ("blk.0.attn_q.weight", (64, 64))))
    drafts = header(
        EMBEDDING,
        ("blk.0.attn_q.weight", (64, 64)),
        ("blk.2.attn_q.weight", (64, 64)),
        ("blk.2.nextn.eh_proj.weight", (128, 64)),
        ("cls.output.weight", (64, 2)),
        block_count=3,
        nextn_predict_layers=1,
    )
    assert Traffic.of(drafts) == plain


def test_tables_of_each_layer_are_read_by_the_row() -> None:
    traffic = Traffic.of(header(EMBEDDING, ("per_layer_token_embd.weight", (32, 100))))
    assert traffic.embedding == 2 * (64 + 32)
    assert traffic.dense == 0.0


def test_latent_attention_keeps_one_row() -> None:
    keys = {"attention.key_length": 96, "attention.value_length": 80, "attention.head_count_kv": 1}
    both = header(EMBEDDING, **keys)
    latent = header(EMBEDDING, **keys, **{"attention.key_length_mla": 24})
    assert kv_bytes_per_cell(both) == 2 * (96 + 80) * 2
    assert Traffic.of(latent).kv_cell == 2 * 96 * 2
    assert Traffic.of(latent).kv_exact == 1.0


@pytest.mark.parametrize(
    "key", ["attention.sliding_window", "ssm.state_size", "attention.shared_kv_layers"]
)
def test_other_memories_are_flagged(key: str) -> None:
    plain = header(EMBEDDING)
    assert Traffic.of(plain).kv_exact == 1.0
    other = replace(plain, metadata={**plain.metadata, f"a.{key}": 8})
    assert Traffic.of(other).kv_exact == 0.0
    shared = key == "attention.shared_kv_layers"  # with an earlier layer
    assert Traffic.of(other).kv_cell == (0.0 if shared else Traffic.of(plain).kv_cell)
    unused = replace(plain, metadata={**plain.metadata, f"a.{key}": 0})
    assert Traffic.of(unused).kv_exact == 1.0


def test_heads_that_differ_by_layer() -> None:
    info = header(EMBEDDING, **{"attention.head_count_kv": [2, 1]})
    assert Traffic.of(info).kv_cell == (2 + 1) * 16 * 2 * 2


def test_a_split_model_counts_all_its_files(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        path = tmp_path / f"m-{number + 1:05d}-of-00002.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if number == 0:
            writer.add_block_count(2)
        writer.add_uint16("split.count", 2)
        writer.add_uint16("split.no", number)
        name = ("token_embd.weight", "blk.0.attn_q.weight")[number]
        writer.add_tensor(name, np.zeros((8, 64), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    traffic = Traffic.of(check_gguf(paths[0]))
    assert traffic.dense == traffic.head == 8 * 64 * 4


_REAL_TICKS = """
import json, sys
from benchmarks import bmt
if not bmt.can_see_pages():
    print("null")
    sys.exit()
options = bmt.parser().parse_args(
    ["--model", sys.argv[1], "--rows", "1,4,16", "--prompts", "", "--depth", "8",
     "--rounds", "1", "--threads", "1"])
print(json.dumps(bmt.measure(options)["ticks"]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's page notes")
@pytest.mark.parametrize("name", ["demo", "moe"])
def test_the_weights_that_real_ticks_touch(files: dict[str, Path], name: str) -> None:
    """The estimate beside the pages of the mapped model that libllama reads in one tick."""
    done = subprocess.run(
        [sys.executable, "-c", _REAL_TICKS, str(files[name])], capture_output=True, text=True,
        env={**os.environ, "UMA_BACKEND": "cpu"},
    )  # fmt: skip
    if "python build_llama.py" in done.stderr:
        pytest.skip("no libllama for the processor is built")
    assert done.returncode == 0, done.stderr
    ticks = json.loads(done.stdout)
    assert [tick["rows"] for tick in ticks] == [1, 4, 16]
    for tick in ticks:
        assert 0.93 < tick["weights_ratio"] < 1.07, tick
