"""The session table: one layout for two processes, and nothing left on any file system."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from umaserve.wire.table import (
    DONE,
    FREE,
    PIECE_BYTES,
    RUNNING,
    WAITING,
    PieceTable,
    SessionTable,
    TableSpec,
    shared_file,
)

SPEC = TableSpec(n_slots=5, n_ctx=65)


def test_columns_do_not_overlap():
    columns, size = SPEC.layout()
    spans = sorted(
        (offset, offset + int(np.prod(shape)) * dtype.itemsize)
        for offset, dtype, shape in columns.values()
    )
    for (_, end), (start, _) in zip(spans, spans[1:], strict=False):
        assert end <= start
    assert spans[-1][1] <= size


def test_every_column_is_separate_memory():
    table, fd = SessionTable.create(SPEC)
    os.close(fd)
    columns, _ = SPEC.layout()
    for i, name in enumerate(columns):
        getattr(table, name)[...] = i
    for i, name in enumerate(columns):
        assert (getattr(table, name) == i).all(), name
    words = [*table.header.record.item(), *table.abort.record.item()]
    assert not any(words) and not table.ticks.view(np.float64).any()


def test_another_process_sees_the_same_columns():
    table, fd = SessionTable.create(SPEC)
    child = """
        import sys
        from umaserve.wire.table import SessionTable, TableSpec
        table = SessionTable(TableSpec(5, 65), int(sys.argv[1]))
        assert table.tokens[3, 7] == 41 and table.seq[0] == -1
        table.tokens[3, 8] = 42
        table.header.longest_tick_ns = 2**40
    """
    table.tokens[3, 7] = 41
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(child), str(fd)], pass_fds=[fd], check=True
    )
    os.close(fd)
    assert table.tokens[3, 8] == 42
    assert table.header.longest_tick_ns == 2**40


def test_the_file_has_no_name():
    fd = shared_file(4096)
    try:
        assert os.fstat(fd).st_nlink == 0
    finally:
        os.close(fd)


def test_a_mapping_that_is_too_small_is_refused():
    fd = shared_file(4096)
    try:
        with pytest.raises(ValueError, match="smaller than its layout"):
            SessionTable(SPEC, fd)
    finally:
        os.close(fd)


def stored(texts):
    offsets = np.cumsum([0] + [len(text) for text in texts]).astype(np.int32)
    return offsets, np.frombuffer(b"".join(texts), np.uint8)


def test_pieces_come_back_as_they_went_in():
    fd = shared_file(PIECE_BYTES)
    pieces = [b"", b"hello", b"\xf0\x9f", b"\x98\x80", b""]
    PieceTable(fd, len(pieces)).write(stored(pieces), stored([b""] * 5))
    reader = PieceTable(fd, len(pieces))
    os.close(fd)
    assert [reader.piece(i) for i in range(5)] == pieces
    assert reader.piece(-1) == b"" and reader.piece(5) == b""
    assert [reader.hidden(i) for i in range(-1, 6)] == [b""] * 7


def test_names_of_tokens_without_text_lie_behind_the_texts():
    fd = shared_file(PIECE_BYTES)
    pieces, names = [b"", b"abc", b"", b"de"], [b"<s>", b"", b"<|end|>", b""]
    writer = PieceTable(fd, 4)
    writer.write(stored(pieces), stored(names))
    reader = PieceTable(fd, 4)
    assert [reader.piece(i) for i in range(4)] == pieces
    assert [reader.hidden(i) for i in range(4)] == names
    assert reader.names() == ("<s>", "<|end|>")
    long = np.array([0, 0, 0, 0, PIECE_BYTES], np.int32)
    with pytest.raises(ValueError, match="bytes"):
        writer.write(stored(pieces), (long, np.zeros(PIECE_BYTES, np.uint8)))
    os.close(fd)


def test_who_had_cells_and_waits_is_parked():
    table, fd = SessionTable.create(SPEC)
    os.close(fd)
    table.state[:] = [FREE, WAITING, WAITING, RUNNING, DONE]
    table.t_admit_ns[:] = [1, 0, 1, 1, 1]  # a free row's is of the request before
    assert table.parked() == [2]
    assert [table.is_parked(slot) for slot in range(5)] == [False, False, True, False, False]
