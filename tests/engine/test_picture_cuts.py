"""Rows that are cut right behind a picture whose cells are all at its first position."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.patches.engine_faults import given_up_behind_pictures
from tests.support.patches.engine_spies import spied_next_turns
from tests.support.small_models import write_model
from umaserve.engine.seats.pictures import Pictures, Placed
from umaserve.eyes.seen import pseudo_tokens
from umaserve.wire import messages as m
from umaserve.wire import table as t

LINES, COLUMNS = 4, 6
GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)


def picture(folder: Path, at: int, width: int, columns: int) -> m.Picture:
    """A picture of random embeddings, in a grid or (``columns`` of 0) in a line."""
    rows, path = LINES * COLUMNS, folder / f"{columns}"
    np.random.default_rng(3).standard_normal((rows, width), np.float32).tofile(path)
    positions = max(LINES, COLUMNS) if columns else rows
    run = m.Run(str(path), 0, rows, positions, columns, False)
    return m.Picture(at, pseudo_tokens(b"it", positions), (run,))


@pytest.mark.parametrize("columns", [COLUMNS, 0], ids=["grid", "line"])
def test_a_chunk_that_is_given_up_behind_a_picture_is_all_that_is_computed_again(
    tmp_path: Path, columns: int
) -> None:
    model = write_model(tmp_path / "m.gguf", "qwen2vl-micro")
    before, behind = "Look at this: ", " and say what it is."
    answers, computed = [], []
    for patch in (None, given_up_behind_pictures):
        with DrivenEngine(model=model, patch=patch, probe=False) as engine:
            seen = picture(tmp_path, len(before), engine.ready.n_embd_input, columns)
            texts = len(engine.ids(before)) + len(engine.ids(behind))
            began = engine.table.header.prefill_tokens
            serial = engine.submit(
                before + behind, pictures=(seen,), max_tokens=8, sampling=GREEDY
            )
            engine.wait(serial)
            assert engine.reason(serial) == t.REASON_LENGTH
            assert engine.table.header.aborted_chunks == (patch is not None)
            answers.append(engine.generated(serial))
            computed.append(int(engine.table.header.prefill_tokens - began) - texts)
    assert answers[0] == answers[1]
    assert computed[0] == computed[1]


def test_an_edit_right_behind_a_picture_keeps_its_cells(tmp_path: Path) -> None:
    """The next request begins in the cells of the one before, as on an accelerator."""
    model, path = write_model(tmp_path / "m.gguf", "qwen2vl-micro"), tmp_path / "told"
    before = "Look at this: " * 20
    with DrivenEngine(
        model=model, probe=False, patch=partial(spied_next_turns, path=str(path))
    ) as engine:
        seen = picture(tmp_path, len(before), engine.ready.n_embd_input, COLUMNS)
        known = len(engine.ids(before)) + seen.runs[0].positions
        fields: dict[str, Any] = {"pictures": (seen,), "max_tokens": 8, "sampling": GREEDY}
        alone = engine.run(before + "Where?", **fields)
        engine.run(before + "Name it.", domain="a", **fields)
        began = engine.table.header.prefill_tokens
        serial = engine.submit(before + "Where?", domain="a", **fields)
        engine.wait(serial)
        known += engine.prompt_tokens(serial)[0] != engine.ids(before)[0]  # the start token
        assert int(engine.table.cached[engine.slots[serial]]) == known
        assert engine.table.header.prefill_tokens - began == len(engine.ids("Where?"))
        assert engine.generated(serial) == alone
    told = [json.loads(line)[:3] for line in path.read_text().splitlines()]
    # all cells of a picture are at its first position
    behind = known - seen.runs[0].positions + 1
    assert [each for each in told if each[0] == "on"] == [["on", behind, True]]


def test_where_the_last_cell_of_so_many_tokens_is() -> None:
    """Pictures at tokens 3 to 6 in a grid, 6 to 9 in another, and 10 to 14 in a line."""
    runs = [m.Run("", 0, 6, 3, 3, False)] * 2 + [m.Run("", 0, 4, 4, 0, False)]
    places = [(3, 6), (6, 9), (10, 14)]
    pictures = object.__new__(Pictures)
    pictures._placed = {
        5: [Placed(*place, run) for place, run in zip(places, runs, strict=True)]
    }
    found = [pictures.last_position(5, n) for n in range(1, 16)]
    assert found == [0, 1, 2, 3, 3, 3, 6, 6, 6, 9, 10, 11, 12, 13, 14]
    assert pictures.last_position(4, 6) == 5
    cut: list[tuple[int, int, int]] = []
    context = SimpleNamespace(cut=lambda *what: cut.append(what) or len(cut) < 2)
    pictures._table = SimpleNamespace(seq=np.array([0, 0, 0, 0, 0, 7]))
    pictures._loaded = SimpleNamespace(context=context)
    assert (pictures.keep(5, 9), pictures.keep(5, 9)) == (9, 0)
    assert cut == [(7, 9, 6)] * 2
