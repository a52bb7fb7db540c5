"""Files that a user names: nobody else decides where the bytes go, or reads them."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.record_lines import Lines, quick, write
from tests.support.server_harness import DaemonProcess
from tests.support.strangers import IS_ROOT, give_away
from umaserve.cli.service import command as service
from umaserve.models.fetching import hub
from umaserve.server.figures.record_file import RecordError, RecordFile
from umaserve.system import own_file
from umaserve.system.own_file import NotOurs, check_own, open_own, write_own
from umaserve.system.private_folder import NotPrivate

ROOT = Path(__file__).resolve().parents[2]
__all__ = ["quick"]  # files are written at once


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    """A folder as ``/tmp`` is."""
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def append(path: Path) -> None:
    os.close(open_own(str(path), os.O_WRONLY | os.O_APPEND))


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_new_files_are_for_their_owner_alone(tmp_path: Path, sticky: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write(RecordFile(str(tmp_path / "trace.jsonl"), Lines()), [b"1\n"])
        write(RecordFile(str(sticky / "trace.jsonl"), Lines()), [b"1\n"])
        write_own(tmp_path / "out.html", b"page")
    finally:
        os.umask(before)
    for path in (tmp_path / "trace.jsonl", sticky / "trace.jsonl", tmp_path / "out.html"):
        assert mode(path) == 0o600, path


def test_moved_files_and_new_ones_stay_private(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(RecordFile(str(path), Lines(), max_bytes=10, keep=1), [b"1234567\n"], [b"1234567\n"])
    assert mode(path) == mode(tmp_path / "t.jsonl.1") == 0o600


def test_a_file_that_is_there_keeps_the_mode_that_its_owner_chose(tmp_path: Path) -> None:
    path = tmp_path / "score.csv"
    path.touch()
    path.chmod(0o640)
    write(RecordFile(str(path), Lines()), [b"1\n"])
    assert mode(path) == 0o640 and path.read_bytes() == b"1\n"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_a_sticky_folder_is_not_followed(
    tmp_path: Path, sticky: Path, there: bool
) -> None:
    victim, link = tmp_path / "victim", sticky / "trace.jsonl"
    if there:
        victim.write_bytes(b"mine\n")
    link.symlink_to(victim)
    with pytest.raises(RecordError, match=r"is a link in a folder that others may write to; name"):
        RecordFile(str(link), Lines())
    with pytest.raises(NotOurs):
        write_own(link, b"page")
    assert victim.exists() == there and (not there or victim.read_bytes() == b"mine\n")


def test_a_link_on_the_way_is_not_followed_either(tmp_path: Path, sticky: Path) -> None:
    (sticky / "reports").symlink_to(tmp_path)
    with pytest.raises(NotOurs, match=None) as caught:
        write_own(sticky / "reports" / "out.html", b"page")
    assert f"{sticky / 'reports'} is a link" in str(caught.value.strerror)
    assert not (tmp_path / "out.html").exists()


def test_a_link_that_comes_later_is_not_followed(tmp_path: Path, sticky: Path) -> None:
    victim, path, log = tmp_path / "victim", sticky / "trace.jsonl", Lines()
    file = RecordFile(str(path), log)
    path.symlink_to(victim)
    write(file, [b"1\n"], [b"2\n"])
    assert not victim.exists()
    ((level, text),) = log.said
    assert level == "warn" and "is a link" in text and "\n" not in text


def test_a_link_that_comes_between_look_and_opening_is_not_followed(
    tmp_path: Path, sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, path = tmp_path / "victim", sticky / "out.html"
    victim.write_bytes(b"mine\n")
    mine = tmp_path / "to sticky.html"  # a link of ours may lead there
    mine.symlink_to(path)
    look, links = own_file.check_own, []

    def then_link(name: str) -> bool:
        shared = look(name)
        path.symlink_to(victim)
        links.append(name)
        return shared

    monkeypatch.setattr(own_file, "check_own", then_link)
    for name in (path, mine):
        with pytest.raises(OSError):
            write_own(name, b"page")
        path.unlink()
    assert len(links) == 2 and victim.read_bytes() == b"mine\n"


def test_links_in_folders_of_our_own_are_followed(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "latest").symlink_to("reports")
    (tmp_path / "score.csv").symlink_to("latest/today.csv")
    write(RecordFile(str(tmp_path / "score.csv"), Lines(), header=b"x\n"), [b"1\n"])
    assert (tmp_path / "reports" / "today.csv").read_bytes() == b"x\n1\n"


def test_a_link_of_ours_into_a_sticky_folder_leads_to_what_is_ours(
    tmp_path: Path, sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").symlink_to(sticky / "out")
    write_own(tmp_path / "out", b"1")
    write_own(tmp_path / "out", b"22")
    assert (sticky / "out").read_bytes() == b"22"
    give_away(sticky / "out", monkeypatch)
    with pytest.raises(NotOurs, match="belongs to" if IS_ROOT else "a link"):
        write_own(tmp_path / "out", b"3")


def test_a_file_of_somebody_else_in_a_sticky_folder_is_left_alone(
    sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sticky / "trace.jsonl"
    path.write_bytes(b"his\n")
    path.chmod(0o666)
    give_away(path, monkeypatch)
    with pytest.raises(RecordError, match=r"belongs to .*; name a file in a folder of your own"):
        RecordFile(str(path), Lines())
    with pytest.raises(NotOurs):
        write_own(path, b"page")
    assert path.read_bytes() == b"his\n"


def test_a_second_name_of_a_file_in_a_sticky_folder_is_left_alone(
    tmp_path: Path, sticky: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine\n")
    os.link(victim, sticky / "trace.jsonl")
    with pytest.raises(NotOurs, match="second name"):
        append(sticky / "trace.jsonl")
    os.link(victim, tmp_path / "other name")  # where nobody else makes names, it is our wish
    append(tmp_path / "other name")


def test_a_folder_of_somebody_else_is_as_a_sticky_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    his = tmp_path / "his"
    his.mkdir()
    (his / "out.html").symlink_to(tmp_path / "victim")
    give_away(his, monkeypatch)
    with pytest.raises(NotOurs, match="link"):
        check_own(str(his / "out.html"))


def test_a_pipe_of_ours_is_written_and_one_of_somebody_else_is_not(
    tmp_path: Path, sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, sticky):
        os.mkfifo(folder / "pipe")
        reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        write(RecordFile(str(folder / "pipe"), Lines()), [b"1\n"])
        assert os.read(reader, 10) == b"1\n"
        os.close(reader)
    give_away(sticky / "pipe", monkeypatch)
    with pytest.raises(NotOurs, match="belongs to"):  # at once: opening it would wait
        write_own(sticky / "pipe", b"1\n")


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="no /dev/fd here")
def test_streams_by_name_are_written(tmp_path: Path, sticky: Path) -> None:
    read, write_end = os.pipe()
    write_own(f"/dev/fd/{write_end}", b"through a pipe")
    assert os.read(read, 100) == b"through a pipe"
    with open(sticky / "redirected", "wb") as file:
        write_own(f"/dev/fd/{file.fileno()}", b"into a file")
    assert (sticky / "redirected").read_bytes() == b"into a file"


def test_a_download_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "x.incomplete").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"), hub._locked(tmp_path / "x.incomplete"):
        pytest.fail("it was opened")
    assert not (tmp_path / "victim").exists()


def test_units_are_written_where_nobody_else_can_change_them(tmp_path: Path) -> None:
    service._write(tmp_path / "own" / "user" / "x.service", b"ours")
    assert mode(tmp_path / "own") == mode(tmp_path / "own" / "user") == 0o700
    (tmp_path / "own").chmod(0o777)
    with pytest.raises(NotPrivate, match="XDG_CONFIG_HOME"):
        service._write(tmp_path / "own" / "user" / "x.service", b"others'")
    assert (tmp_path / "own" / "user" / "x.service").read_bytes() == b"ours"


def test_the_daemon_refuses_such_a_file_with_a_word(
    tmp_path: Path, sticky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, link = tmp_path / "victim", sticky / "trace.jsonl"
    link.symlink_to(victim)
    if IS_ROOT:
        give_away(link, monkeypatch)
    with DaemonProcess(tmp_path, wait=False, trace=str(link)) as daemon:
        daemon.expected = 1
        assert daemon.wait() == 1
    assert f"{link} is not written: it is a link" in daemon.log
    assert not victim.exists()


def test_commands_refuse_such_a_file_before_they_begin(tmp_path: Path, sticky: Path) -> None:
    (sticky / "out.html").symlink_to(tmp_path / "victim")
    done = subprocess.run(
        [sys.executable, "-m", "umaserve", "bench", "--report", str(sticky / "out.html")],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "is not written: it is a link" in done.stderr
    assert not (tmp_path / "victim").exists()


def test_nothing_else_writes_files_that_a_user_names() -> None:
    """``bench/target.py`` has a log in a folder that it made for itself, and ``cli/run.py`` has
    its log in the private state folder.  The names of a service's files are the manager's."""
    ways = re.compile(r"\.write_(text|bytes)\(|(?<!fd)open\([^)]*[\"'][wax]b?\+?[\"']|O_CREAT")
    found = {
        str(path.relative_to(ROOT / "umaserve"))
        for folder in ("bench", "cli", "client", "dashboard", "server")
        for path in (ROOT / "umaserve" / folder).rglob("*.py")
        if ways.search(path.read_text("utf-8"))
    }
    assert found <= {
        "bench/target.py", "cli/run.py", "cli/service/command.py", "server/clients/listener.py",
    }  # fmt: skip
