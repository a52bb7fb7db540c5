"""How many KV cells there are where nobody said so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.small_models import ROOT
from umaserve.assets import demo_model_path
from umaserve.config import Config
from umaserve.engine.model import capacity
from umaserve.engine.model.capacity import (
    Fit,
    after_refusal,
    auto_cells,
    find_fits,
    leave_snapshots,
    why_no_memory,
    why_no_such_cells,
)
from umaserve.engine.model.contexts import sizes_of
from umaserve.llama.memory import state_shape
from umaserve.model_settings import AdapterSettings
from umaserve.models.adapter import adapter_bytes
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFInfo
from umaserve.models.needs import ENGINE_BYTES, LEAST_CELLS, ModelFile
from umaserve.server.engines.start.model_start import memory_of
from umaserve.wire import messages as m

sys.path.insert(0, str(ROOT / "tools"))

from make_lora import write_lora  # noqa: E402

GIB = 1 << 30
TOLD = [each.name for each in msgspec.structs.fields(m.Ready) if each.required]
CPU = {"type": "cpu", "memory_free": 8 * GIB, "memory_total": 8 * GIB}


def gpu(free: int, total: int = 80 * GIB, kind: str = "gpu") -> dict[str, Any]:
    return {"type": kind, "memory_free": free, "memory_total": total}


def qwen_small() -> GGUFInfo:
    """The shape of a 0.5B: 24 layers of 2 heads with 64 values, 12 KiB a cell."""
    keys = {
        "qwen2.block_count": 24, "qwen2.embedding_length": 896, "qwen2.attention.head_count": 14,
        "qwen2.attention.head_count_kv": 2, "qwen2.context_length": 32768,
    }  # fmt: skip
    return GGUFInfo(Path("m"), "qwen2", dict(keys), {}, 500 << 20, 500 << 20, 0)


def start(**fields: Any) -> m.Start:
    usual: dict[str, Any] = {"n_slots": 32, "n_ctx": 0, "n_positions": 32768, "n_seq": 8}
    return m.Start("m", **(usual | fields))


def cells(available: int, *gpus: dict[str, Any], **fields: Any) -> int:
    told = start(**fields)
    return auto_cells(told, find_fits(told, qwen_small(), [CPU, *gpus], available))


def test_a_projector_takes_memory_too(tmp_path: Path) -> None:
    projector = tmp_path / "mmproj.gguf"
    with open(projector, "wb") as file:
        file.truncate(GIB // 2)
    assert cells(4 * GIB, mmproj=str(projector)) == cells(3 * GIB)
    assert cells(3 * GIB, mmproj=str(tmp_path / "none.gguf")) == cells(3 * GIB)
    config, model = Config(mmproj=str(projector)), ModelFile("m", 500 << 20)
    without = memory_of(model, Config(mmproj="off"))
    assert memory_of(model, config).n_bytes == without.n_bytes + GIB


def test_adapters_take_memory_too(tmp_path: Path) -> None:
    path = str(demo_model_path())
    wide = write_lora(demo_model_path(), tmp_path / "wide.gguf", rank=200)
    size = adapter_bytes([str(wide)])
    matrices = [each for each in check_gguf(wide).tensors if "lora" in each.name]
    assert size == sum(4 * int(np.prod(each.shape)) for each in matrices) > 0
    adapters = (m.Adapter("wide", str(wide)),)
    assert cells(3 * GIB + size, adapters=adapters) == cells(3 * GIB)
    assert cells(8 * GIB, gpu(2 * GIB + size), adapters=adapters) == cells(8 * GIB, gpu(2 * GIB))
    assert adapter_bytes([str(tmp_path / "none.gguf"), path]) == 0
    lora, model = (AdapterSettings("wide", str(wide)),), ModelFile("m", 500 << 20)
    without = memory_of(model, Config())
    assert memory_of(model, Config(lora=lora)).n_bytes == without.n_bytes + size
    ready = m.Ready(**(dict.fromkeys(TOLD, "") | {"model_bytes": 10, "kv_bytes": 5}), adapters=(
        m.Adapter("a", "a", n_bytes=3), m.Adapter("b", "b", n_bytes=4)), state_bytes=100)
    assert ready.memory_bytes == 122


def test_a_refusal_says_what_adapters_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(demo_model_path())
    told = m.Start(path, n_slots=2, n_ctx=512, n_seq=2, adapters=(m.Adapter("x", "x"),))
    monkeypatch.setattr(capacity, "adapter_bytes", lambda paths: (1 << 50) * len([*paths]))
    text = why_no_memory(told)
    assert "512 KV cells, 1048576.0 for the adapters), and this" in text
    assert "; leave --lora away, take a smaller model" in text


def test_a_small_machine_keeps_more_than_half_of_what_is_left() -> None:
    n = cells(3 * GIB)
    left = 3 * GIB - (500 << 20) - ENGINE_BYTES
    kv = 24 * 2 * 64 * 2 * 2
    assert n > LEAST_CELLS and n % 256 == 0
    # the second cache for one prompt and the masks of both count too
    assert n * (kv + 1024) + min(n, 32768) * (kv + 256) <= left / 2
    assert (n + 512) * (kv + 1024 + 176) + 32768 * (kv + 256) > left / 2


def test_in_main_memory_cells_take_no_more_than_the_weights_or_a_gib() -> None:
    assert cells(64 * GIB) == GIB // (24 * 2 * 64 * 2 * 2) // 256 * 256


def test_an_accelerator_may_have_what_all_sessions_can_use() -> None:
    assert cells(3 * GIB, gpu(79 * GIB)) == 8 * 32768
    assert cells(3 * GIB, gpu(2 * GIB)) < 8 * 32768
    # two share the layers
    assert cells(3 * GIB, gpu(2 * GIB), gpu(2 * GIB)) > cells(3 * GIB, gpu(2 * GIB))


def test_layers_in_both_memories_are_bound_by_both() -> None:
    both = cells(3 * GIB, gpu(79 * GIB), gpu_layers=12)
    assert cells(3 * GIB) < both < 8 * 32768
    assert cells(3 * GIB, gpu(1 * GIB), gpu_layers=12) < both
    assert cells(3 * GIB, gpu(79 * GIB), gpu_layers=0) == cells(3 * GIB)


def test_memory_that_both_share_is_main_memory_too() -> None:
    shared = cells(3 * GIB, gpu(16 * GIB, 16 * GIB, "igpu"))
    assert LEAST_CELLS < shared <= cells(3 * GIB)


def test_attention_that_keeps_its_scores_takes_more() -> None:
    assert cells(3 * GIB, head_major=True) < cells(3 * GIB, flash_attn="auto")
    assert cells(3 * GIB, type_k="q8_0", type_v="q8_0") > cells(3 * GIB)


def test_there_are_always_a_few_but_no_more_than_sessions_can_use() -> None:
    assert cells(1) == LEAST_CELLS
    assert cells(1, n_positions=256, n_seq=2) == 512
    nobody_knows = 0
    assert cells(nobody_knows, n_seq=1) == 32768
    assert cells(nobody_knows, gpu(0, 0), n_seq=1) == 32768


def test_cells_beyond_one_session_need_no_room_in_the_second_cache() -> None:
    fit = Fit(left=2000, cell=8, second=2, most=1 << 20)
    assert fit.cells(positions=1000) == 100
    assert fit.cells(positions=50) == (1000 - 100) // 8
    assert Fit(2000, 8, 2, most=7).cells(1000) == 7


def test_types_of_cells_are_looked_at_before_the_weights() -> None:
    info = qwen_small()
    info.metadata["qwen2.attention.key_length"] = 48
    assert why_no_such_cells(start(), info) == ""
    assert why_no_such_cells(start(type_v="q8_0"), info) == ""
    for head_major in (False, True):
        why = why_no_such_cells(start(type_k="q8_0", head_major=head_major), info)
        assert "48 K values" in why and "--kv-type f16:f16" in why
    assert "flash attention" in why_no_such_cells(start(type_v="q8_0", flash_attn="off"), info)


def test_half_of_the_cells_are_tried_where_libllama_refuses() -> None:
    assert after_refusal(start(), 100_000) == 50_000
    assert after_refusal(start(), LEAST_CELLS) == 0
    assert after_refusal(start(n_ctx=100_000), 100_000) == 0  # somebody chose them


def test_a_refusal_says_what_a_draft_model_takes_of_the_memory() -> None:
    """To leave it away helps only where the model alone fits."""
    path, vast = str(demo_model_path()), 1 << 50
    start = m.Start(path, n_slots=2, n_ctx=512, n_seq=2, draft_model="models/small.gguf")
    assert why_no_memory(start) == why_no_memory(start, 1 << 20) == ""
    text = why_no_memory(start, vast)
    assert text.startswith("the models need 1048576.0 GiB (0.0 for the weights, ")
    assert "512 KV cells, 1048576.0 for the draft model small.gguf), and this" in text
    assert "; leave --draft-model away, take a smaller model" in text
    text = why_no_memory(msgspec.structs.replace(start, n_ctx=1 << 40), vast)
    assert "for the draft model small.gguf" in text and "--draft-model" not in text


def qwen35(architecture: str = "qwen35", **more: int) -> GGUFInfo:
    """The shape of a Qwen 3.5 4B: 32 layers, one in four attends, 2 MiB of state in the others."""
    keys = {
        "block_count": 32, "embedding_length": 2560, "attention.head_count": 16,
        "attention.head_count_kv": 4, "attention.key_length": 256, "attention.value_length": 256,
        "full_attention_interval": 4, "ssm.inner_size": 4096, "ssm.state_size": 128,
        "ssm.conv_kernel": 4, "ssm.group_count": 16, **more,
    }  # fmt: skip
    metadata: dict[str, object] = {f"{architecture}.{key}": n for key, n in keys.items()}
    return GGUFInfo(Path("m"), architecture, metadata, {}, 4 * GIB, 4 * GIB, 0)


STATE = 24 * 4 * (4096 * 128 + 3 * (4096 + 2 * 16 * 128))  # bytes


def test_states_count_where_layers_are_recurrent() -> None:
    assert state_shape(qwen35()).n_bytes == STATE
    with_drafts = qwen35(block_count=33, nextn_predict_layers=1)
    assert state_shape(with_drafts).n_bytes == STATE, "a draft layer attends"


@pytest.mark.parametrize(
    ("available", "expected"), [(9 * GIB, 1), (13 * GIB, 1), (18 * GIB, 3), (60 * GIB, 7)]
)
def test_memory_bounds_the_earlier_states(available: int, expected: int) -> None:
    """They are an eighth of what is left at most, and what they take is nobody else's."""
    info, told = qwen35(), start()
    fits = find_fits(told, info, [CPU], available)
    n, left = leave_snapshots(told, info, fits)
    assert n == expected
    assert [fit.left - n * 9 * STATE for fit in fits] == [fit.left for fit in left]
    assert n * 9 * STATE <= fits[0].left / 8


def test_a_short_memory_keeps_no_earlier_states() -> None:
    for told in (start(), start(n_ctx=1 << 17)):
        fits = find_fits(told, qwen35(), [CPU], 7 * GIB if not told.n_ctx else 11 * GIB)
        assert leave_snapshots(told, qwen35(), fits) == (0, fits)


def test_earlier_states_are_kept_for_drafts_alone() -> None:
    for info, told in ((qwen35(), start(speculate="off")), (qwen35("qwen3next"), start())):
        fits = find_fits(told, info, [CPU], 60 * GIB)
        assert leave_snapshots(told, info, fits) == (0, fits)


def test_all_rows_with_drafts_are_one_ubatch() -> None:
    kept = [sizes_of(start(n_ubatch=n), 4096, 9, 7).snapshots for n in (512, 64, 33, 16, 8)]
    assert kept == [7, 6, 3, 0, 0]
