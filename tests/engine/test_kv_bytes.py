"""Bytes of KV cells, and which types are refused, against what libllama allocates and refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.small_models import write_model
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.kv_shape import KvKind, KvShape

TYPES = ("f16", "q8_0", "q5_1", "q5_0", "q4_0")
CELLS = 16384  # so many that a byte of one shows in the hundredths of a MiB that libllama prints
MODELS = {
    "demo": ("", {}),
    "mamba": ("mamba-micro", {}),
    "jamba": ("jamba-micro", {}),
    "lfm2": ("lfm2-micro", {}),
    "gpt2": ("gpt2-micro", {}),
    "windows": ("gemma3-micro", {}),
    "heads of 16": ("gemma3-micro", {"n_head_kv": 2, "head_dim": 16}),
    "heads of 40": ("gemma3-micro", {"n_head_kv": 4, "head_dim": 40}),
    "heads of 96": ("gemma3-micro", {"n_head_kv": 1, "head_dim": 96}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, llama.Model]]:
    folder, library, opened = tmp_path_factory.mktemp("models"), llama.load(), {}
    for name, (micro, changes) in MODELS.items():
        path = folder / f"{name}.gguf"
        made = write_model(path, micro, **changes) if micro else str(demo_model_path())
        opened[name] = llama.Model.open(library, Path(made))
    yield opened
    for model in opened.values():
        model.close()


def allocated(model: llama.Model, kind: KvKind) -> list[float]:
    """MiB of KV cells by libllama's log, by buffer.  Raises ContextError."""
    library, flash = model.library, False if kind.head_major else None
    mark = library.log_position()
    with llama.Context.open(
        model, n_ctx=CELLS, n_batch=64, n_ubatch=64, type_k=kind.type_k, type_v=kind.type_v,
        flash_attn=flash,
    ):  # fmt: skip
        log = "\n".join(library.log_lines(mark))
    return [float(mib) for mib in re.findall(r"KV buffer size = +([\d.]+) MiB", log)]


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from(tuple(MODELS)),
    st.builds(KvKind, st.sampled_from(TYPES), st.sampled_from(TYPES), st.booleans()),
)
@example("heads of 40", KvKind("q8_0", "q8_0"))
@example("heads of 40", KvKind("f16", "q4_0"))
@example("heads of 96", KvKind("q5_0", "q4_0"))
@example("lfm2", KvKind("q5_1", "f16", True))
@example("windows", KvKind("f16", "q8_0", True))
def test_bytes_are_exact_and_refusals_are_libllamas(
    models: dict[str, llama.Model], name: str, kind: KvKind
) -> None:
    model = models[name]
    info = check_gguf(model.path)
    shape = KvShape.of(info.architecture, info.metadata)
    why = shape.why_not(kind)
    if not why:
        found = allocated(model, kind)
        mib = CELLS * shape.bytes_per_cell(kind) / (1 << 20)
        assert sum(found) == pytest.approx(mib, abs=0.0051 * len(found))
    elif "head-major" not in why:  # libllama looks at the others, once the weights are loaded
        with pytest.raises(llama.ContextError):
            allocated(model, kind)


def test_the_bundled_model_has_what_the_page_says(models: dict[str, llama.Model]) -> None:
    assert allocated(models["demo"], KvKind()) == [CELLS * 4096 / (1 << 20)]
