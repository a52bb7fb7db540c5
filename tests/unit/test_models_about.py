"""What a file says of itself, and what that means on a machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import model_trees as trees
from tests.support.small_models import write_header
from umaserve.cli.models import estimate as estimates
from umaserve.cli.models.command import _legend
from umaserve.cli.models.estimate import Learned, Machine, bytes_per_token, estimate
from umaserve.cli.models.graphics import own_memory
from umaserve.cli.models.listing import kind_text, speed_text
from umaserve.engine.model.costs import cost_file
from umaserve.llama import builds
from umaserve.models.about import About, about, billions
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.needs import ENGINE_BYTES
from umaserve.policy.cost.model import PROMPT_EDGES, ROW_EDGES, CostModel
from umaserve.system.own_python import run_module

F16 = ("f16", "f16")
CELL = 4 * 2 * 16 * 2 * 2  # layers, heads, values of a head, K and V, bytes
EMBEDDING = OUTPUT = 64 * 96 * 4
BLOCKS = 4 * 64 * 64 * 4
WEIGHTS = EMBEDDING + OUTPUT + BLOCKS


def test_the_facts(tmp_path: Path) -> None:
    path = trees.write(tmp_path / "m.gguf", trees.tiny_model())
    found, info = about(str(path))
    assert info is not None
    assert found == About(
        bytes=path.stat().st_size, architecture="llama", n_ctx_train=2048, quantization="Q8_0",
        parameters=WEIGHTS // 4, embeds=False, problem="",
    )  # fmt: skip


def test_the_bytes_of_a_split_model_are_those_of_all_its_files(tmp_path: Path) -> None:
    data = trees.tiny_model(split__count=2)
    for number in (1, 2):
        trees.write(tmp_path / f"m-0000{number}-of-00002.gguf", data)
    first = str(tmp_path / "m-00001-of-00002.gguf")
    assert about(first)[0].bytes == 2 * len(data)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    assert "lacks m-00002-of-00002.gguf, a part of the model" in about(first)[0].problem


def test_a_file_that_does_not_name_its_quantisation_is_looked_at(tmp_path: Path) -> None:
    path = trees.write(tmp_path / "m.gguf", trees.tiny_model(file_type=1024))
    assert about(str(path))[0].quantization == "F32"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"general__architecture": "clip"}, "projector of a multimodal model"),
        ({"general__architecture": "llama", "general__type": "adapter"}, "a LoRA adapter"),
        ({"general__architecture": "flux"}, "it has no vocabulary"),
    ],
)
def test_what_is_no_model_is_told_apart(tmp_path: Path, keys: dict[str, str], says: str) -> None:
    path = write_header(tmp_path / "m.gguf", **keys)
    assert says in about(path)[0].problem


def test_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    whole = trees.tiny_model()
    none = whole[:8] + bytes(8) + whole[16:]  # no tensors
    path = trees.write(tmp_path / "m.gguf", none)
    assert "it has no weights (a vocabulary alone?)" in about(str(path))[0].problem


def test_models_that_make_vectors_are_told_apart(tmp_path: Path) -> None:
    keys = {"general.architecture": "bert", "bert.attention.causal": False}
    dotted = {name.replace(".", "__"): value for name, value in keys.items()}
    found, _ = about(str(trees.write(tmp_path / "m.gguf", trees.tiny_model(**dotted))))
    assert found.embeds and not found.ranks and not found.problem and kind_text(found)
    dotted = {name.replace("bert", "qwen3"): value for name, value in dotted.items()}
    dotted |= {"general__architecture": "qwen3", "qwen3__pooling_type": 4}
    del dotted["qwen3__attention__causal"]
    found, _ = about(str(trees.write(tmp_path / "r.gguf", trees.tiny_model(**dotted))))
    assert found.embeds and found.ranks and kind_text(found) == " (a reranker)"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GGUF", "is truncated"),
        (trees.tiny_model()[:-40], "is truncated"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"", "is empty"),
    ],
)
def test_damage_is_a_problem_of_the_file(tmp_path: Path, data: bytes, says: str) -> None:
    path = trees.write(tmp_path / "m.gguf", data)
    found, info = about(str(path))
    assert info is None and says in found.problem and str(path) not in found.problem
    assert found.bytes == len(data)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, ""),
        (7, "7"),
        (28_672, "28.7K"),
        (494_032_768, "494M"),
        (7_615_616_512, "7.62B"),
        (1e9, "1B"),
    ],
)
def test_parameters_in_words(count: float, text: str) -> None:
    assert billions(int(count)) == text


# --- on a machine ---------------------------------------------------------------------------------


@pytest.fixture
def info(tmp_path: Path):
    return check_gguf(trees.write(tmp_path / "m.gguf", trees.tiny_model()))


@pytest.mark.parametrize(
    ("cells", "context"), [(2048, 2048), (9999, 2048), (1000, 1000), (100, 0), (-1, 0)]
)
def test_how_much_context_fits(info, cells: int, context: int) -> None:
    machine = Machine(WEIGHTS + ENGINE_BYTES + cells * CELL, None)
    found = estimate(info, 2048, F16, machine)
    assert found.context == context
    assert found.needs == WEIGHTS + ENGINE_BYTES + (context or 512) * CELL


def test_smaller_kv_types_leave_room_for_more(info) -> None:
    machine = Machine(WEIGHTS + ENGINE_BYTES + 1000 * CELL, None)
    assert estimate(info, 8192, ("q8_0", "q8_0"), machine).context == 1000 * 64 // 34


def test_the_rate_is_bandwidth_over_the_bytes_of_a_token(info) -> None:
    assert bytes_per_token(info) == OUTPUT + BLOCKS  # of the embedding, one row
    assert estimate(info, 2048, F16, Machine(1 << 40, 1e9)).rate == 1e9 / (OUTPUT + BLOCKS)
    assert estimate(info, 2048, F16, Machine(1 << 40, None)).rate is None


def test_a_rate_that_was_learned_goes_before_one_that_is_reckoned(info) -> None:
    learned = (Learned(5, 5, 1.0, False), Learned(WEIGHTS, WEIGHTS // 4, 2.0, False))
    found = estimate(info, 2048, F16, Machine(1 << 40, 1e9, learned))
    assert (found.rate, found.measured) == (500.0, True)


def test_of_a_mixture_a_token_reads_the_experts_that_it_uses(tmp_path: Path) -> None:
    keys = {"llama__expert_count": 8, "llama__expert_used_count": 2}
    data = trees.tiny_model(experts=8, **keys)
    info = check_gguf(trees.write(tmp_path / "m.gguf", data))
    assert bytes_per_token(info) == OUTPUT + BLOCKS + 2 * 4 * 64 * 64 * 4


# --- what daemons learned -------------------------------------------------------------------------


def kept(
    folder: Path, name: str, size: int, ms: float, at: int, *, runs: tuple[float, ...] = (),
    parameters: int = 0, **changes: object,
) -> None:  # fmt: skip
    """A cost file in which a lone token of a model takes so long."""
    key = {
        "layout": cost_file.LAYOUT, "model": [name, size, parameters or size], "experts_used": 0,
        **changes,
    }  # fmt: skip
    cost = CostModel.unknown()
    cost.mean[0, 1, 0], cost.count[0, 1, 0] = ms, 5.0
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{at}.npz"
    np.savez_compressed(path, key=json.dumps(key), runs=np.array(runs), **cost.numbers())
    os.utime(path, (at, at))


def test_the_layout_is_the_cost_file_s() -> None:
    assert estimates.COST_LAYOUT == cost_file.LAYOUT
    assert (ROW_EDGES[1], PROMPT_EDGES[0]) == (1, 0)  # where `_read` looks for a lone token


def test_bandwidth_is_that_of_the_best_large_dense_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))
    costs = tmp_path / "costs"
    kept(costs, "slow 7B Q8_0", 8_000_000_000, 100.0, 1)
    kept(costs, "fast 7B Q4_K", 4_000_000_000, 40.0, 2)
    kept(costs, "tiny", 16_000_000, 0.1, 3)
    kept(costs, "qwen3moe 30B.A3B", 30_000_000_000, 20.0, 4)
    kept(costs, "another layout", 9_000_000_000, 1.0, 5, layout=1)
    kept(costs, "fewer experts", 9_000_000_000, 1.0, 6, experts_used=2)
    trees.write(costs / "torn.npz", b"PK")
    machine = estimates.this_machine(1 << 34)
    assert machine.bandwidth == 1e11
    assert [known.ms for known in machine.learned] == [20.0, 0.1, 40.0, 100.0]


@pytest.mark.parametrize(
    ("runs", "ms", "rate", "sure"),
    [
        ((), 370.0, "at least 2.7/s", False),
        ((370.0,), 370.0, "at least 2.7/s", False),
        ((370.0, 43.5), 60.0, "at least 23/s", False),
        ((43.5, 370.0), 370.0, "at least 23/s", False),
        ((43.5, 370.0, 45.0), 151.0, "23/s", True),
    ],
)
def test_a_speed_is_the_best_of_the_runs_and_sure_where_two_agree(
    runs: tuple[float, ...], ms: float, rate: str, sure: bool, info, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))
    kept(tmp_path / "costs", "m", WEIGHTS, ms, 2, runs=runs, parameters=WEIGHTS // 4)
    machine = estimates.this_machine(1 << 40)
    found = estimate(info, 2048, F16, machine)
    assert (found.measured, found.sure, found.runs) == (True, sure, max(len(runs), 1))
    facts = SimpleNamespace(embeds=False, n_ctx_train=2048, is_base=False)
    row: Any = SimpleNamespace(estimate=found, about=facts)
    assert speed_text(row) == rate
    assert ("until a second run confirms it" in _legend([row], machine)) is not sure


def test_a_speed_is_of_the_device_that_was_used_last(
    info, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))
    costs, of = tmp_path / "costs", {"parameters": WEIGHTS // 4}
    kept(costs, "m", WEIGHTS, 2.0, 1, runs=(2.0, 2.0), backend="cuda", **of)
    kept(costs, "m", WEIGHTS, 25.0, 2, runs=(20.0,), backend="cpu", threads=[1, 1], **of)
    kept(costs, "m", WEIGHTS, 40.0, 3, runs=(40.0,), backend="cpu", threads=[2, 2], **of)
    found = estimate(info, 2048, F16, estimates.this_machine(1 << 40))
    assert (found.rate, found.runs, found.sure) == (50.0, 2, False)


def test_main_memory_is_timed_where_nobody_learned_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))
    machine = estimates.this_machine(1 << 34)
    assert machine.bandwidth is not None and 1e8 < machine.bandwidth < 1e13
    assert (machine.memory, machine.graphics) == (1 << 34, False)


@pytest.mark.parametrize(
    ("cards", "memory"), [(0, (1 << 34, None, (), False)), (1 << 33, (1 << 33, None, (), True))]
)
def test_memory_of_graphics_cards_is_not_timed(
    cards: int, memory: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(estimates, "graphics_bytes", lambda: cards)
    assert estimates.this_machine(1 << 34) == memory


def test_cards_with_memory_of_their_own() -> None:
    cpu, inside = ({"type": kind, "memory_total": 1 << 34} for kind in ("cpu", "igpu"))
    cards = [{"type": "gpu", "memory_total": 1 << size} for size in (33, 32)]
    assert own_memory([cpu]) is own_memory([cpu, inside]) is None
    assert own_memory([cpu, inside, *cards]) == (1 << 33) + (1 << 32)


def test_the_devices_of_this_machine_as_a_child_process_finds_them() -> None:
    if builds.select() is None:
        pytest.skip("no build of libllama is in the cache: run `make llama` first")
    done = subprocess.run(
        run_module("umaserve.cli.models.graphics"), capture_output=True, check=True
    )
    devices = json.loads(done.stdout.splitlines()[-1])
    assert "cpu" in {device["type"] for device in devices}
    assert own_memory(devices) is None or own_memory(devices) > 1 << 28
