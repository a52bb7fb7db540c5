"""Files of the prefix cache: what was written comes back, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.cache import disk

TOKENS = np.arange(40, dtype=np.int32)
DATA = np.frombuffer(os.urandom(5000), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return disk.folder_of(str(tmp_path), {"model": "m"})


def test_what_was_written_is_found_and_read(folder: Path) -> None:
    disk.write(folder, "alice", TOKENS[:30], 0, DATA, 5.0)
    disk.write(folder, "alice", TOKENS, 30, DATA[:100], 2.0)
    found = sorted(disk.scan(folder), key=lambda kept: kept.p0)
    assert [(kept.domain, kept.p0, kept.tokens.size, kept.cost_ms) for kept in found] == [
        ("alice", 0, 30, 5.0), ("alice", 30, 40, 2.0),
    ]  # fmt: skip
    assert np.array_equal(disk.read(found[0]), DATA)
    assert np.array_equal(disk.read(found[1]), DATA[:100])


def test_only_its_owner_can_read_it(folder: Path) -> None:
    path = disk.write(folder, "", TOKENS, 0, DATA, 5.0)
    assert os.stat(path).st_mode & 0o077 == os.stat(folder).st_mode & 0o077 == 0


def test_another_model_has_another_folder(tmp_path: Path) -> None:
    assert disk.folder_of(str(tmp_path), {"model": "m"}) != disk.folder_of(
        str(tmp_path), {"model": "n"}
    )


@settings(max_examples=200)
@given(at=st.integers(0, 10_000), new=st.binary(min_size=1, max_size=8), cut=st.booleans())
def test_a_damaged_file_is_never_read(tmp_path_factory, at: int, new: bytes, cut: bool) -> None:
    folder = tmp_path_factory.mktemp("kept")
    path = Path(disk.write(folder, "d", TOKENS, 0, DATA, 5.0))
    whole = path.read_bytes()
    at %= len(whole)
    damaged = whole[:at] if cut else whole[:at] + new + whole[at + len(new) :]
    if damaged == whole:
        return
    path.write_bytes(damaged)
    for kept in disk.scan(folder):
        assert disk.read(kept) is None
    assert not path.exists()


def test_a_foreign_file_and_one_that_was_not_finished_are_removed(folder: Path) -> None:
    (folder / "notes.kv").write_bytes(b"not of ours")
    half = folder / "abc.part"
    half.write_bytes(b"half")
    os.utime(half, (1000, 1000))
    assert disk.scan(folder) == [] and list(folder.iterdir()) == []


def test_what_another_engine_is_writing_is_left_alone(folder: Path) -> None:
    (folder / "abc.part").write_bytes(b"half")
    assert disk.scan(folder) == [] and (folder / "abc.part").exists()


def test_a_file_under_another_texts_name_is_removed(folder: Path) -> None:
    one = Path(disk.write(folder, "d", TOKENS, 0, DATA, 5.0))
    other = Path(disk.write(folder, "d", TOKENS[:20], 0, DATA, 5.0))
    os.replace(one, other)
    assert disk.scan(folder) == []


def test_a_file_that_was_swapped_after_it_was_found_is_not_read(folder: Path) -> None:
    path = Path(disk.write(folder, "d", TOKENS, 0, DATA, 5.0))
    kept = disk.scan(folder)[0]
    other = disk.write(folder, "e", TOKENS, 0, DATA[::-1].copy(), 5.0)
    os.replace(other, path)
    assert disk.read(kept) is None


def test_what_was_used_longest_ago_goes_first(folder: Path) -> None:
    paths = [disk.write(folder, "d", TOKENS + i, 0, DATA, 5.0) for i in range(4)]
    for age, path in enumerate(paths):
        os.utime(path, (1000 - age, 1000 - age))
    disk.read(next(kept for kept in disk.scan(folder) if kept.path == paths[3]))
    size = os.stat(paths[0]).st_size
    assert disk.shrink(folder, 2 * size) == 2
    assert sorted(map(str, folder.iterdir())) == sorted([paths[0], paths[3]])
