"""Files of the prefix cache: what was written comes back, and nothing else does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.strangers import UID, only_root
from umaserve.cache import disk
from umaserve.system.private_folder import NotPrivate

TOKENS = np.arange(40, dtype=np.int32)
DATA = np.frombuffer(os.urandom(5000), np.uint8)
PART = f"{'0' * 40}.abcd1234.part"


@pytest.fixture
def folder(tmp_path: Path) -> disk.Folder:
    return disk.folder_of(str(tmp_path), {"model": "m"})


def names(folder: disk.Folder) -> list[str]:
    """What lies in it, but the key."""
    return sorted(path.name for path in folder.path.iterdir() if path.name != disk.KEY)


def test_what_was_written_is_found_and_read(folder: disk.Folder) -> None:
    disk.write(folder, "alice", TOKENS[:30], 0, DATA, 5.0)
    disk.write(folder, "alice", TOKENS, 30, DATA[:100], 2.0)
    found = sorted(disk.scan(folder), key=lambda kept: kept.p0)
    assert [(kept.domain, kept.p0, kept.tokens.size, kept.cost_ms) for kept in found] == [
        ("alice", 0, 30, 5.0), ("alice", 30, 40, 2.0),
    ]  # fmt: skip
    assert np.array_equal(disk.read(folder, found[0]), DATA)
    assert np.array_equal(disk.read(folder, found[1]), DATA[:100])


def test_only_its_owner_can_read_it(folder: disk.Folder) -> None:
    path = disk.write(folder, "", TOKENS, 0, DATA, 5.0)
    assert os.stat(path).st_mode & 0o077 == os.stat(folder.path).st_mode & 0o077 == 0


def test_another_model_has_another_folder(tmp_path: Path) -> None:
    one, other = (disk.folder_of(str(tmp_path), {"model": name}) for name in "mn")
    assert one.path != other.path and one.key != other.key
    assert disk.folder_of(str(tmp_path), {"model": "m"}) == one


@settings(max_examples=200)
@given(at=st.integers(0, 10_000), new=st.binary(min_size=1, max_size=8), cut=st.booleans())
def test_a_damaged_file_is_never_read(tmp_path_factory, at: int, new: bytes, cut: bool) -> None:
    folder = disk.folder_of(str(tmp_path_factory.mktemp("kept")), {"model": "m"})
    path = Path(disk.write(folder, "d", TOKENS, 0, DATA, 5.0))
    whole = path.read_bytes()
    at %= len(whole)
    damaged = whole[:at] if cut else whole[:at] + new + whole[at + len(new) :]
    if damaged == whole:
        return
    path.write_bytes(damaged)
    for kept in disk.scan(folder):
        assert disk.read(folder, kept) is None
    assert not path.exists()


def test_what_was_not_finished_is_removed(folder: disk.Folder) -> None:
    half = folder.path / PART
    half.write_bytes(b"half")
    os.utime(half, (1000, 1000))
    assert disk.scan(folder) == [] and names(folder) == []


def test_what_another_engine_is_writing_is_left_alone(folder: disk.Folder) -> None:
    (folder.path / PART).write_bytes(b"half")
    assert disk.scan(folder) == [] and names(folder) == [PART]


def test_nothing_but_own_regular_files_with_an_entry_s_name_is_removed(
    folder: disk.Folder, tmp_path: Path
) -> None:
    thesis = tmp_path / "thesis"
    thesis.write_bytes(b"of years")
    old = (1000, 1000)
    for name in ("notes.kv", "id_rsa", "x.part", "0" * 41 + ".kv"):
        (folder.path / name).write_bytes(b"not of ours")
        os.utime(folder.path / name, old)
    (folder.path / f"{'0' * 40}.kv").symlink_to(thesis)
    (folder.path / f"{'1' * 40}.kv").mkdir()
    os.mkfifo(folder.path / f"{'2' * 40}.kv")
    before = names(folder)
    assert disk.scan(folder) == [] and disk.shrink(folder, 0) == 0
    for name in before:
        disk.remove(str(folder.path / name))
    assert names(folder) == before and thesis.exists()


@only_root
def test_a_file_of_somebody_else_is_neither_read_nor_removed(folder: disk.Folder) -> None:
    path = disk.write(folder, "d", TOKENS, 0, DATA, 5.0)
    kept = disk.scan(folder)[0]
    os.chown(path, UID, UID)
    assert disk.scan(folder) == [] and disk.read(folder, kept) is None
    assert os.path.exists(path) and disk.shrink(folder, 0) == 0


def test_an_entry_that_was_written_without_the_key_is_not_read(tmp_path: Path) -> None:
    """Somebody who could write there once may have left it."""
    ours, theirs = (disk.folder_of(str(tmp_path / name), {"model": "m"}) for name in ("a", "b"))
    for folder in (theirs, disk.Folder(theirs.path, b"")):  # with another key; with none
        planted = Path(disk.write(folder, "d", TOKENS, 0, DATA, 5.0))
        os.replace(planted, ours.path / planted.name)
        (found,) = disk.scan(ours)
        assert disk.read(ours, found) is None and names(ours) == []


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 33, "link", "open", "pipe"])
def test_a_key_that_others_may_know_is_refused_and_stays(
    folder: disk.Folder, tmp_path: Path, key: bytes | str
) -> None:
    path = folder.path / disk.KEY
    assert path.stat().st_mode & 0o777 == 0o600
    if key == "open":
        path.chmod(0o644)
    elif isinstance(key, bytes):
        path.write_bytes(key)
    else:
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved") if key == "link" else os.mkfifo(path)
    with pytest.raises(OSError, match="key"):
        disk.folder_of(str(tmp_path), {"model": "m"})
    assert os.path.lexists(path)


def test_a_link_under_the_identity_s_name_is_refused(tmp_path: Path) -> None:
    place = disk.folder_of(str(tmp_path), {"model": "m"}).path
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "id_rsa").write_bytes(b"secret")
    shutil.rmtree(place)
    place.symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="it is a link"):
        disk.folder_of(str(tmp_path), {"model": "m"})
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["id_rsa"]


@pytest.mark.parametrize("mode", [0o777, 0o757])
@pytest.mark.parametrize("below", [".", "below"])
def test_a_folder_that_others_may_write_to_is_refused(
    tmp_path: Path, mode: int, below: str
) -> None:
    (tmp_path / "open" / "below").mkdir(parents=True)
    (tmp_path / "open").chmod(mode)
    with pytest.raises(NotPrivate, match="--cache-dir"):
        disk.folder_of(str(tmp_path / "open" / below), {"model": "m"})


@only_root
def test_a_link_of_somebody_else_in_a_folder_like_tmp_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    place = disk.folder_of(str(tmp_path), {"model": "m"}).path
    (tmp_path / "mine").mkdir()
    shutil.rmtree(place)
    place.symlink_to(tmp_path / "mine")
    os.lchown(place, UID, UID)
    with pytest.raises(NotPrivate, match="belongs to"):
        disk.folder_of(str(tmp_path), {"model": "m"})


@only_root
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "his").mkdir()
    os.chown(tmp_path / "his", UID, UID)
    with pytest.raises(NotPrivate, match="belongs to"):
        disk.folder_of(str(tmp_path / "his" / "kv"), {"model": "m"})
    assert not (tmp_path / "his" / "kv").exists()


def test_folders_above_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    disk.folder_of(str(tmp_path / "a" / "b"), {"model": "m"})
    assert [(tmp_path / name).stat().st_mode & 0o077 for name in ("a", "a/b")] == [0, 0]


@pytest.mark.parametrize("n_tokens", [-1, 0, 1 << 40, (1 << 62) + 1])
def test_a_head_that_lies_is_damaged(folder: disk.Folder, n_tokens: int) -> None:
    head = msgspec.json.encode(disk.Head("d", 0, n_tokens, 1, 0.0))
    path = folder.path / f"{'0' * 40}.kv"
    path.write_bytes(disk.MAGIC + len(head).to_bytes(4, "little") + head + bytes(99))
    assert disk.scan(folder) == [] and not path.exists()


def test_a_file_under_another_texts_name_is_removed(folder: disk.Folder) -> None:
    one = Path(disk.write(folder, "d", TOKENS, 0, DATA, 5.0))
    other = Path(disk.write(folder, "d", TOKENS[:20], 0, DATA, 5.0))
    os.replace(one, other)
    assert disk.scan(folder) == []


def test_a_file_that_was_swapped_after_it_was_found_is_not_read(folder: disk.Folder) -> None:
    path = Path(disk.write(folder, "d", TOKENS, 0, DATA, 5.0))
    kept = disk.scan(folder)[0]
    other = disk.write(folder, "e", TOKENS, 0, DATA[::-1].copy(), 5.0)
    os.replace(other, path)
    assert disk.read(folder, kept) is None


def test_what_was_used_longest_ago_goes_first(folder: disk.Folder) -> None:
    paths = [disk.write(folder, "d", TOKENS + i, 0, DATA, 5.0) for i in range(4)]
    for age, path in enumerate(paths):
        os.utime(path, (1000 - age, 1000 - age))
    disk.read(folder, next(kept for kept in disk.scan(folder) if kept.path == paths[3]))
    size = os.stat(paths[0]).st_size
    assert disk.shrink(folder, 2 * size) == 2
    assert sorted(str(folder.path / name) for name in names(folder)) == sorted([paths[0], paths[3]])
