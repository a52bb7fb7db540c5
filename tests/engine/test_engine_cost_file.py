"""What ticks cost, from one start to the next: read where it fits, never in the way."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from umaserve.engine.model.costs.cost_file import KEEP, RUNS, CostFile, identity
from umaserve.llama.adapters import Adapters
from umaserve.policy.cost.model import CostModel, learn
from umaserve.policy.cost.prediction import predict
from umaserve.wire import messages as m

KEY = {"model": "a", "threads": [2, 2]}


@pytest.fixture
def cost() -> CostModel:
    cost = CostModel.unknown()
    for ms in (20.0, 21.0, 20.5):
        learn(cost, 0, 1, 0, 30.0, ms)
        learn(cost, 1, 3, 64, 500.0, 9 * ms)
    return cost


def arrays(cost: CostModel) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in cost.numbers().items()}


def unchanged(cost: CostModel) -> bool:
    return all(not array.any() for array in cost.numbers().values())


def test_what_was_saved_is_read_again(tmp_path, cost):
    assert CostFile(KEY, tmp_path / "costs").save(cost) == ""
    read = CostModel.unknown()
    assert CostFile(KEY, tmp_path / "costs").load(read)
    cost.doubt()  # what an earlier run learned is believed less
    for name, array in arrays(cost).items():
        assert np.array_equal(read.numbers()[name], array), name
    assert predict(read, 0, 1, 0, 30.0) == predict(cost, 0, 1, 0, 30.0) > 0.0
    # saved once more, it is replaced: no other file is left
    assert CostFile(KEY, tmp_path / "costs").save(cost) == ""
    assert len(list((tmp_path / "costs").iterdir())) == 1


def test_starts_without_prompts_do_not_make_chunks_seem_quicker_and_quicker(tmp_path, cost):
    """After a dozen starts chunks of 128 tokens were believed to take 0.2 ms instead of 100."""
    file = CostFile(KEY, tmp_path)
    cost.parts[:3] = 30.0, 50.0, 70.0
    file.save(cost)
    for _ in range(5):
        file, later = CostFile(KEY, tmp_path), CostModel.unknown()
        assert file.load(later)
        assert later.parts[:3] == pytest.approx([0.7 * ms for ms in (30.0, 50.0, 70.0)])
        assert file.save(later) == ""
    later.parts[1] = 45.0  # learned since
    file.save(later)
    assert CostFile(KEY, tmp_path).load(later)
    assert later.parts[:3] == pytest.approx([0.7 * ms for ms in (30.0, 45.0, 70.0)])


def a_run(folder, ms: float, ticks: int) -> list[float]:
    """A start that recalls the costs, ticks of a lone token, and the best of each run by then."""
    file, cost = CostFile(KEY, folder), CostModel.unknown()
    file.load(cost)
    for _ in range(ticks):
        learn(cost, 0, 1, 0, 30.0, ms)
    assert file.save(cost) == "" and file.save(cost) == ""
    with np.load(file.path) as stored:
        return list(stored["runs"])


def test_the_time_of_a_lone_token_is_kept_for_each_run(tmp_path):
    """Other programs make a run slower, so a later run must not hide an earlier, faster one."""
    assert a_run(tmp_path, 40.0, 30) == pytest.approx([40.0])
    assert a_run(tmp_path, 40.0, 0) == pytest.approx([40.0]), "a run without such a tick is none"
    busy = a_run(tmp_path, 300.0, 60)
    assert len(busy) == 2 and busy[0] == pytest.approx(40.0) and busy[1] > 100.0
    assert a_run(tmp_path, 41.0, 60)[2] == pytest.approx(41.0, rel=0.05)
    for _ in range(RUNS):
        found = a_run(tmp_path, 42.0, 30)
    assert len(found) == RUNS


def test_the_costs_of_something_else_are_not_read(tmp_path, cost):
    file = CostFile(KEY, tmp_path)
    file.save(cost)
    other = CostFile({**KEY, "threads": [1, 1]}, tmp_path)
    read = CostModel.unknown()
    assert not other.load(read)
    # not even under its name
    file.path.rename(other.path)
    assert not other.load(read)
    assert unchanged(read)


def test_everything_that_a_tick_depends_on_tells_files_apart(tmp_path):
    def loaded(**changes):
        return SimpleNamespace(**{
            "model": SimpleNamespace(description="x", size_bytes=10, n_params=5),
            "library": SimpleNamespace(version="b1", build=SimpleNamespace(backend="cpu")),
            "device": "CPU", "n_threads": 2, "n_threads_batch": 2, "n_ctx": 512, "n_ubatch": 512,
            "adapters": Adapters(), **changes,
        })  # fmt: skip

    start = m.Start("m.gguf", n_slots=4, n_ctx=512, n_seq=2)
    moved = m.Start("elsewhere.gguf", n_slots=8, n_ctx=512, n_seq=2)
    plain = CostFile(identity(start, loaded()), tmp_path).path
    assert CostFile(identity(moved, loaded()), tmp_path).path == plain
    # what memory bears differs from start to start, and no tick costs more for cells nobody uses
    assert CostFile(identity(start, loaded(n_ctx=1024)), tmp_path).path == plain
    other = SimpleNamespace(description="y", size_bytes=10, n_params=5)
    library = SimpleNamespace(version="b2", build=SimpleNamespace(backend="cpu"))
    changed = [
        identity(start, loaded(model=other)), identity(start, loaded(library=library)),
        identity(start, loaded(n_threads=1)), identity(start, loaded(n_threads_batch=1)),
        identity(start, loaded(adapters=Adapters(None, (), (0.5,), ("a",)))),
        identity(start, loaded(device="a GPU")), identity(start, loaded(n_ubatch=256)),
        identity(m.Start("m.gguf", n_slots=4, n_ctx=512, n_seq=2, type_k="q8_0"), loaded()),
        identity(m.Start("m.gguf", n_slots=4, n_ctx=512, n_seq=2, experts_used=2), loaded()),
    ]  # fmt: skip
    paths = {CostFile(key, tmp_path).path for key in changed}
    assert len(paths) == len(changed)
    assert plain not in paths
    off = loaded(adapters=Adapters(None, (), (0.0,), ("a",)))
    assert CostFile(identity(start, off), tmp_path).path == plain


def _cut(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def _flip(whole: bytes) -> bytes:
    at = len(whole) // 3
    return whole[:at] + bytes(255 - byte for byte in whole[at : at + 64]) + whole[at + 64 :]


@pytest.mark.parametrize(
    "damage",
    [_cut, _flip, lambda _: b"", lambda _: b"no numbers", lambda whole: whole[:100]],
    ids=["cut", "flipped", "empty", "text", "start"],
)
def test_a_damaged_file_is_not_read(tmp_path, cost, damage):
    file = CostFile(KEY, tmp_path)
    file.save(cost)
    file.path.write_bytes(damage(file.path.read_bytes()))
    read = CostModel.unknown()
    assert not file.load(read)
    assert unchanged(read)
    # and the next one takes its place
    assert file.save(cost) == ""
    assert file.load(read)


@pytest.mark.parametrize("change", ["shape", "nan", "missing"])
def test_numbers_that_cannot_be_are_not_read(tmp_path, cost, change):
    file = CostFile(KEY, tmp_path)
    stored = arrays(cost)
    if change == "shape":
        stored["mean"] = stored["mean"][:, :-1]
    elif change == "nan":
        stored["slope"][0, 2] = np.nan
    else:
        del stored["error"]
    np.savez_compressed(file.path, key=file.key, **stored)
    read = CostModel.unknown()
    assert not file.load(read)
    assert unchanged(read)


def test_a_file_that_is_absent_is_not_read(tmp_path):
    assert not CostFile(KEY, tmp_path / "never made").load(CostModel.unknown())


def test_a_folder_that_cannot_be_written_gives_a_reason(tmp_path, cost):
    (tmp_path / "file").write_text("in the way")
    why = CostFile(KEY, tmp_path / "file" / "costs").save(cost)
    assert str(tmp_path / "file") in why
    # nor one in which the name is taken by a folder
    file = CostFile(KEY, tmp_path / "costs")
    (file.path / "full").mkdir(parents=True)
    assert file.path.name in file.save(cost)
    assert [path.name for path in file.folder.iterdir()] == [file.path.name]


def test_the_oldest_files_go(tmp_path, cost):
    files = [CostFile({"n": n}, tmp_path) for n in range(KEEP + 3)]
    for age, file in enumerate(files):
        assert file.save(cost) == ""
        os.utime(file.path, (age, age))
    assert files[-1].save(cost) == ""
    assert len(list(tmp_path.iterdir())) == KEEP
    assert not files[0].path.exists()
    assert files[-1].path.exists()
