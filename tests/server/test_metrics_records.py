"""The scorecard's CSV and the trace: rows, rotation, and disks that take nothing."""

from __future__ import annotations

import csv
import json
import os
import resource
import sys
from pathlib import Path

import pytest
import trio

from tests.support.record_lines import Lines, quick, write
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.server.figures import record_file
from umaserve.server.figures.record_file import RecordError, RecordFile

__all__ = ["quick"]  # files are written at once


def test_lines_are_appended_behind_a_header(tmp_path: Path) -> None:
    path, log = tmp_path / "a.csv", Lines()
    for _ in range(2):
        write(RecordFile(str(path), log, header=b"x,y\n"), [b"1,2\n", b"3,4\n"])
    assert path.read_bytes() == b"x,y\n" + 2 * b"1,2\n3,4\n"
    assert log.said == []


def test_other_columns_are_not_mixed_and_a_cut_line_is_closed(tmp_path: Path) -> None:
    path, log = tmp_path / "a.csv", Lines()
    path.write_bytes(b"old\n1\n")
    write(RecordFile(str(path), log, header=b"new\n", keep=0), [b"2\n"])
    assert path.read_bytes() == b"new\n2\n"
    assert (tmp_path / "a.csv.1").read_bytes() == b"old\n1\n"
    path.write_bytes(b"new\n2")
    write(RecordFile(str(path), log, header=b"new\n"), [b"3\n"])
    assert path.read_bytes() == b"new\n2\n3\n"


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_rotation_by_size(tmp_path: Path, keep: int) -> None:
    path, log = tmp_path / "t.jsonl", Lines()
    file = RecordFile(str(path), log, header=b"h\n", max_bytes=20, keep=keep)
    write(file, *[[b"%07d\n" % i, b"%07d\n" % i] for i in range(5)])
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["t.jsonl", *(f"t.jsonl.{i + 1}" for i in range(keep))]
    )
    for number in range(keep + 1):
        name = f"t.jsonl.{number}" if number else "t.jsonl"
        assert (tmp_path / name).read_bytes() == b"h\n" + 2 * (b"%07d\n" % (4 - number))
    assert log.said == []


def test_a_file_that_somebody_moves_is_made_again(tmp_path: Path) -> None:
    path, log = tmp_path / "t.jsonl", Lines()
    file = RecordFile(str(path), log)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.run)
            file.put(b"1\n")
            while not path.exists() or not path.read_bytes():
                await trio.sleep(0.01)
            os.rename(path, tmp_path / "moved")
            file.put(b"2\n")
            while not path.exists() or not path.read_bytes():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert (tmp_path / "moved").read_bytes() == b"1\n" and path.read_bytes() == b"2\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
def test_a_full_device_is_one_warning() -> None:
    log = Lines()
    write(RecordFile("/dev/full", log), [b"1\n"], [b"2\n"])
    ((level, text),) = log.said
    assert level == "warn" and "No space left" in text and "/dev/full" in text


def test_a_full_disk_costs_one_warning_and_recovers(tmp_path: Path) -> None:
    """The size limit of a process stands for the disk: a write fails, some bytes may go through."""
    path, log = tmp_path / "t.jsonl", Lines()
    file = RecordFile(str(path), log)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.run)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
            for i in range(3):
                file.put(b"%07d\n" % i)
            while not log.said:
                await trio.sleep(0.01)
            await trio.sleep(0.1)  # attempts that say nothing more
            assert not path.read_bytes()  # no half line
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            while len(log.said) < 2:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [level for level, _ in log.said] == ["warn", "info"]
    assert "lost" not in log.said[1][1]
    assert path.read_bytes() == b"0000000\n0000001\n0000002\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/sys takes no file from anybody")
def test_a_read_only_folder_is_one_warning() -> None:
    log = Lines()
    file = RecordFile("/sys/kernel/umaserve.csv", log)
    write(file, [b"1\n"], [b"2\n"])
    ((level, _),) = log.said
    assert level == "warn"


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(record_file, "PENDING_BYTES", 100)
    log = Lines()
    path = tmp_path / "t"
    file = RecordFile(str(path), log)
    for i in range(50):
        file.put(b"%07d\n" % i)
    assert file.lost == 50 - 12
    write(file)
    assert path.read_bytes() == b"".join(b"%07d\n" % i for i in range(38, 50))


@pytest.mark.parametrize("name", ["", "no/such/folder/x.csv"])
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        RecordFile(str(tmp_path / name), Lines())


def test_rows_of_a_run(tmp_path: Path) -> None:
    table, trace = tmp_path / "score.csv", tmp_path / "trace.jsonl"
    with (
        DaemonProcess(
            tmp_path, scorecard=str(table), scorecard_interval_s=0.2, trace=str(trace)
        ) as daemon,
        daemon.client() as client,
    ):
        client.generate("x", max_tokens=30)
        metrics = daemon.metrics()
        eventually(lambda: table.exists() and len(table.read_text().splitlines()) >= 5)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    scalars = [k for k, v in metrics.items() if not isinstance(v, dict) or k == "errors_total"]
    assert list(rows[0]) == ["time", *scalars]
    assert not any(None in row or None in row.values() for row in rows)
    assert rows[-1]["tokens_generated_total"] == "30" and rows[-1]["errors_total"] == "0"
    assert rows[-1]["prefill_guard_active"] in ("0", "1")
    times = [float(row["time"]) for row in rows]
    # one row an interval, though each may be late
    assert all(b > a for a, b in zip(times, times[1:], strict=False))
    ticks = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [tick["tick"] for tick in ticks] == list(range(len(ticks)))
    assert sum(tick["decode_rows"] for tick in ticks) + 1 >= 30
    assert set(ticks[0]) == {
        "tick", "engine", "end_s", "wall_ms", "decode_ms", "sample_ms", "decode_rows",
        "interactive_rows", "drafted_tokens", "accepted_tokens", "prefill_tokens", "kv_cells",
        "predicted_ms", "baseline_ms", "allowed_ms", "slice_ms", "bmt_mb", "flags",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
def test_a_full_disk_costs_no_token(tmp_path: Path) -> None:
    with (
        DaemonProcess(
            tmp_path, scorecard="/dev/full", scorecard_interval_s=0.1, trace="/dev/full"
        ) as daemon,
        daemon.client() as client,
    ):
        assert len(client.generate("x", max_tokens=300).tokens) == 300
        eventually(lambda: daemon.log.count("/dev/full cannot be written") == 2)
        assert len(client.generate("y", id="two", max_tokens=300).tokens) == 300
        assert daemon.metrics()["errors_total"] == {}
    assert daemon.log.count("/dev/full cannot be written") == 2  # a file each
