"""Texts on their way to disk and back: forgotten ones stay away, and no row waits for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.waiting import until
from umaserve.cache import disk
from umaserve.cache.tree import PrefixTree
from umaserve.cache.whole import MARK, WholeTexts
from umaserve.engine.prefixes.disk_texts import DiskTexts
from umaserve.engine.prefixes.restoring import Restorer
from umaserve.engine.prefixes.shelf import Shelf
from umaserve.wire.table import SessionTable, TableSpec

TOKENS = np.arange(40, dtype=np.int32)
DATA = np.frombuffer(os.urandom(5000), np.uint8)


def texts_on(shelf: Shelf, store: Any) -> DiskTexts:
    """Texts of a store on a shelf whose thread a test starts."""
    out = DiskTexts(SimpleNamespace(control=None), store, is_on=False)  # type: ignore[arg-type]
    out.shelf = shelf
    return out


@pytest.fixture
def folder(tmp_path: Path) -> disk.Folder:
    return disk.folder_of(str(tmp_path), {"model": "m"})


@pytest.fixture
def shelf(folder: disk.Folder) -> Iterator[Shelf]:
    made = Shelf(folder, 1 << 20, lambda: None)
    yield made
    made.close()


@pytest.fixture
def tree() -> PrefixTree:
    return PrefixTree(1 << 20)


def files(folder: disk.Folder) -> list[str]:
    return [path.name for path in folder.path.iterdir() if path.name != disk.KEY]


def test_what_waits_to_be_written_is_forgotten(
    folder: disk.Folder, shelf: Shelf, tree: PrefixTree
) -> None:
    texts = texts_on(shelf, tree)
    entry = tree.add("a", TOKENS, 0, DATA, 1e9)
    assert entry is not None
    texts.put(entry, "a", TOKENS)
    texts.clear()
    shelf.start()
    shelf.close()
    assert files(folder) == []


def test_what_is_being_written_goes_once_it_is_there(
    folder: disk.Folder, shelf: Shelf, tree: PrefixTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, go_on = threading.Event(), threading.Event()

    def write(*args) -> str:
        path = disk_write(*args)
        written.set()
        assert go_on.wait(60)
        return path

    disk_write = disk.write
    monkeypatch.setattr(disk, "write", write)
    texts = texts_on(shelf, tree)
    entry = tree.add("a", TOKENS, 0, DATA, 1e9)
    assert entry is not None
    texts.put(entry, "a", TOKENS)
    shelf.start()
    assert written.wait(60)
    (folder.path / f"{'0' * 40}{disk.SUFFIX}").write_bytes(b"of an entry that is held no more")
    texts.clear()
    tree.clear()
    go_on.set()
    shelf.close()
    assert files(folder) == [] and not entry.path


@pytest.mark.parametrize("reads", [True, False])
def test_what_was_found_or_read_does_not_come_back(
    folder: disk.Folder, shelf: Shelf, tree: PrefixTree, reads: bool
) -> None:
    disk.write(folder, "a", TOKENS, 0, DATA, 1e9)
    texts = texts_on(shelf, tree)
    shelf.start()
    until(lambda: texts.shelf.has_news)
    if reads:
        texts.take()
        texts.fetch(tree.match("a", TOKENS), "a")
        until(lambda: texts.shelf.has_news)
    texts.clear()
    tree.clear()
    texts.take()
    tree.check()
    assert not tree.match("a", TOKENS) and files(folder) == []


def test_an_entry_that_was_forgotten_does_not_count_when_its_bytes_come(tree: PrefixTree) -> None:
    for lost in (False, True):
        entry = tree.find("a", TOKENS, 0, 1e9)
        assert entry is not None
        entry.path = "somewhere"
        tree.clear()
        if lost:
            tree.lose(entry)
        else:
            tree.fill(entry, DATA)
        tree.check()
        assert tree.bytes_held == tree.count == 0


def test_a_row_does_not_wait_for_bytes_that_were_evicted_again(
    folder: disk.Folder, shelf: Shelf
) -> None:
    """There is room for a state or for its mark, not for both: the text is computed."""
    store = WholeTexts(DATA.size + 1000)
    texts = texts_on(shelf, store)
    disk.write(folder, "a", TOKENS, 0, DATA, 1e9)
    disk.write(folder, MARK + "a", TOKENS[:30], 0, DATA, 1e9)
    shelf.start()
    until(lambda: texts.shelf.has_news)
    texts.take()
    (part,) = store.match("a", TOKENS[:35])
    assert part.mark is not None
    table, fd = SessionTable.create(TableSpec(1, 64))
    os.close(fd)
    ended: list[int] = []
    restorer = Restorer(table, *[None] * 3, 64, ended.append)  # type: ignore[arg-type]
    texts.fetch([part], "a")
    restorer.begin(0, [part], at_once=True)

    def step() -> bool:
        texts.take()
        restorer.step(at_once=True)
        return bool(ended)

    until(step)
    assert table.n_past[0] == 0 and not restorer.parts
