"""A draft model beside the model that is served."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.scripted import (
    draft_model_that_fails,
    draft_model_that_thinks_it_is_large,
)
from tests.support.small_models import write_header, write_model
from umaserve.assets import demo_model_path
from umaserve.engine.drafting.model import keep_common
from umaserve.engine.drafting.speaker import Speaker
from umaserve.models.needs import LEAST_CELLS
from umaserve.wire import messages as m

STEADY = m.Sampling(temperature=0.0, ignore_eos=True)
UNBOUND = ("latency-guard", "sweet-spot")  # rows that take turns have no drafts
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef greet(name):\n"


def what_drafts_nothing(engine: DrivenEngine) -> str:
    """Why, as a person is told it while the engine starts."""
    while True:
        text = str(engine.expect(m.Log).text)
        if "drafts nothing" in text:
            return text


def counts(engine: DrivenEngine) -> tuple[int, int]:
    header = engine.table.header
    return int(header.draft_tokens), int(header.draft_accepted)


@pytest.fixture(scope="module")
def doubled() -> Iterator[DrivenEngine]:
    """The bundled model drafts for itself: it is right but for near-ties."""
    model = str(demo_model_path())
    with DrivenEngine(
        speculate="draft", draft_model=model, probe=False, without=UNBOUND
    ) as engine:
        yield engine


def test_what_it_says_is_what_the_model_says(doubled: DrivenEngine, oracle: Oracle) -> None:
    ticks = int(doubled.table.header.ticks)
    serial = doubled.submit(PROMPT, max_tokens=120, sampling=STEADY)
    doubled.wait(serial)
    oracle.assert_followed(PROMPT, doubled.generated(serial))
    doubled.release(serial)
    drafted, accepted = counts(doubled)
    assert accepted > 0.9 * drafted > 60
    assert doubled.table.header.ticks - ticks < 50


def test_rows_beside_each_other_and_a_next_turn(doubled: DrivenEngine, oracle: Oracle) -> None:
    """Its sequences are cut to what they share with a row's new text."""
    for more in ("", "    print(name)\n", "    raise name\n\n\nclass A:\n"):
        texts = [PROMPT + more + end for end in ("", "x", "y = 1\n")]
        serials = [doubled.submit(text, max_tokens=40, sampling=STEADY) for text in texts]
        for serial, text in zip(serials, texts, strict=True):
            doubled.wait(serial)
            oracle.assert_followed(text, doubled.generated(serial))
            doubled.release(serial)


def test_a_long_prompt_is_read_in_chunks_beside_the_ticks(doubled: DrivenEngine) -> None:
    prompt = [300 + i * i % 500 for i in range(450)]  # in 113 ticks on the slowest machine
    before = counts(doubled)
    serial = doubled.submit(
        tokens=prompt, n_prompt=len(prompt), max_tokens=400, sampling=STEADY
    )
    doubled.wait(serial)
    doubled.release(serial)
    assert counts(doubled)[1] - before[1] > 100


def test_rows_that_need_more_cells_than_it_has_get_no_drafts(oracle: Oracle) -> None:
    """It is asked for some of them, and never runs out of cells."""
    model = str(demo_model_path())
    texts = [f"{PROMPT}{'# ' * 10}{i}\n" for i in range(8)]
    with DrivenEngine(
        speculate="draft", draft_model=model, n_ctx=768, probe=False, without=UNBOUND
    ) as engine:
        for _ in range(3):
            serials = [engine.submit(text, max_tokens=40, sampling=STEADY) for text in texts]
            for serial, text in zip(serials, texts, strict=True):
                engine.wait(serial)
                oracle.assert_followed(text, engine.generated(serial))
                engine.release(serial)
        assert counts(engine)[1] > 100
        with pytest.raises(AssertionError):
            engine.expect(m.Log, timeout=0.1)


def test_another_domains_text_saves_nobody_time() -> None:
    cut: list[tuple[int, int]] = []

    def forget(_: int, seq: int, first: int, __: int) -> int:
        cut.append((seq, first))
        return 1

    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int32] * 3)
    callback = kind(forget)
    text = np.arange(20, dtype=np.int32)
    speaker = Speaker.of(None, 1, 1)._replace(
        forget=ctypes.cast(callback, ctypes.c_void_p).value,
        held=text[None].copy(), n_held=np.full(1, 12, np.int32), whose=np.full(1, 7),
    )  # fmt: skip
    assert keep_common(speaker, 0, 7, text, 20) == 8 and cut == []
    assert keep_common(speaker, 0, 7, text, 10) == 1 and cut == [(0, 9)]
    assert keep_common(speaker, 0, 8, text, 10) == 10 and cut == [(0, 9), (0, 0)]
    assert speaker.whose[0] == 8 and speaker.n_held[0] == 0


def with_another_token(path: Path) -> str:
    """The bundled model with a letter of its vocabulary changed."""
    data, before = demo_model_path().read_bytes(), (6).to_bytes(8, "little")
    assert data.count(before + b"import") == 1
    path.write_bytes(data.replace(before + b"import", before + b"imporT"))
    return str(path)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (with_another_token, r"token \d+ is b'imporT', and b'import' in uma-demo.gguf"),
        (partial(write_model, shape="micro-151k"), r"it has 151936 tokens, and .* has 5120"),
        (partial(write_model, shape="mamba-micro"), "drafter.gguf: the model keeps a recurrent"),
    ],
)
def test_one_that_does_not_suit_drafts_nothing(
    tmp_path: Path, make: Callable[[Path], str], says: str
) -> None:
    drafter = make(tmp_path / "drafter.gguf")
    with DrivenEngine(speculate="draft", draft_model=drafter) as engine:
        serial = engine.submit(PROMPT, max_tokens=20, sampling=STEADY)
        engine.wait(serial)
        assert counts(engine) == (0, 0) and engine.ready.draft_model == ""
        assert re.search(f"drafts nothing: .*{says}", what_drafts_nothing(engine))


def test_one_of_the_family_with_more_tokens_drafts(tmp_path: Path) -> None:
    """Qwen's larger models have 128 tokens more than the smaller ones; nobody says these."""
    model = write_model(tmp_path / "model.gguf", "micro-151k")
    larger = write_model(tmp_path / "larger.gguf", "micro-151k", n_vocab=151936 + 128)
    asked = {"tokens": [300, 301], "n_prompt": 2, "max_tokens": 30, "sampling": STEADY}
    with DrivenEngine(model=model, speculate="off") as engine:
        plain = engine.run(**asked)
    with DrivenEngine(model=model, speculate="draft", draft_model=larger) as engine:
        assert engine.ready.draft_model == larger
        assert engine.run(**asked) == plain
        assert counts(engine)[0] > 10


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with DrivenEngine(draft_model=str(tmp_path / "none.gguf"), expect_failure=True) as engine:
        assert engine.failure.startswith("--draft-model: ")
        assert "none.gguf" in engine.failure


def with_vast_cells(path: Path) -> str:
    """A header of a model whose KV cells no machine has room for."""
    keys = {"block_count": 512, "embedding_length": 64, "attention__head_count": 4,
            "attention__key_length": 1 << 19, "attention__value_length": 1 << 19}  # fmt: skip
    named = {f"llama__{name}": value for name, value in keys.items()}
    return write_header(path, general__architecture="llama", **named)


def test_one_that_the_machine_has_no_memory_for_is_refused(tmp_path: Path) -> None:
    """Before anything is loaded; the model alone would fit."""
    vast = with_vast_cells(tmp_path / "vast.gguf")
    with DrivenEngine(draft_model=vast, expect_failure=True) as engine:
        assert " for the draft model vast.gguf), and this machine has" in engine.failure
        assert "; leave --draft-model away, " in engine.failure
        assert {each.stage for each in engine.progress} == {"start"}


def test_the_doctor_leaves_it_room_too(tmp_path: Path) -> None:
    """As the engine does where it chooses the KV cells."""
    start = m.Start(
        str(demo_model_path()), n_slots=4, n_ctx=0, n_positions=2048, n_seq=8,
        draft_model=with_vast_cells(tmp_path / "vast.gguf"),
    )  # fmt: skip
    cells = []
    for each in (start, msgspec.structs.replace(start, speculate="off")):
        told = msgspec.json.encode(each).decode()
        command = [sys.executable, "-m", "umaserve.cli.doctor.probe", told]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        facts = map(json.loads, said.splitlines())
        cells += [fact["cells"] for fact in facts if fact["what"] == "context"]
    assert cells[0] == LEAST_CELLS < cells[1]


def test_one_that_is_not_asked_for_needs_no_memory(tmp_path: Path) -> None:
    vast = with_vast_cells(tmp_path / "vast.gguf")
    sizes = {"n_ctx": 0, "n_positions": 2048, "probe": False}
    with DrivenEngine(speculate="ngram", draft_model=vast, **sizes) as engine:
        assert engine.ready.n_ctx > LEAST_CELLS  # the KV cells have the memory that it has not
        assert len(engine.run(PROMPT, max_tokens=4, sampling=STEADY)) == 4


def test_one_that_runs_out_of_cells_is_asked_no_more() -> None:
    """Should it ever, its texts being counted: the answers are the model's own.

    The prompts are short: a slow machine reads four tokens of one in a tick.
    """
    patch, model = draft_model_that_thinks_it_is_large, str(demo_model_path())
    with DrivenEngine(
        patch=patch, speculate="draft", draft_model=model, n_ctx=512, probe=False, without=UNBOUND
    ) as engine:
        answers = [
            engine.run(tokens=prompt, n_prompt=100, max_tokens=100, sampling=STEADY)
            for prompt in ([300 + i + k * i * i % 500 for i in range(100)] for k in range(1, 6))
        ]
        assert "drafts nothing any more" in what_drafts_nothing(engine)
        assert [len(answer) for answer in answers] == [100] * 5


def test_one_that_cannot_be_computed_is_asked_no_more() -> None:
    model = str(demo_model_path())
    with DrivenEngine(
        patch=draft_model_that_fails, speculate="draft", draft_model=model
    ) as engine:
        serial = engine.submit(PROMPT, max_tokens=20, sampling=STEADY)
        engine.wait(serial)
        assert len(engine.generated(serial)) == 20 and counts(engine) == (0, 0)
        assert "drafts nothing any more" in what_drafts_nothing(engine)
