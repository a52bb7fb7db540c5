"""A model is what its file holds: what ran on one does not go on with another in its place."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_engine import answer
from tests.support.server_harness import DaemonProcess, eventually, model_file
from umaserve.models.identity import WHOLE_BYTES, file_facts, identify
from umaserve.server.engines.model_watch import written_over

SLOW = {"FAKE_TICK_MS": "5"}


def other_model(path: Path) -> Path:
    model_file(path)
    with path.open("ab") as file:
        file.write(b"other weights")
    return path


def moved(model: Path) -> None:
    os.replace(other_model(model.with_name("other.gguf")), model)


def copied(model: Path) -> None:
    shutil.copyfile(other_model(model.with_name("other.gguf")), model)


def copied_with_times(model: Path) -> None:
    before = model.stat()
    copied(model)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))


def linked(model: Path) -> None:
    model.unlink()
    model.symlink_to(other_model(model.with_name("other.gguf")))


def second_part(model: Path) -> None:
    os.replace(
        other_model(model.with_name("other.gguf")),
        model.with_name(model.name.replace("00001-of", "00002-of")),
    )


def touched(model: Path) -> None:
    os.utime(model)


def copied_again(model: Path) -> None:
    copy = model.with_name("copy.gguf")
    shutil.copyfile(model, copy)
    os.replace(copy, model)


def moved_and_back(model: Path) -> None:
    away = model.with_name("away.gguf")
    os.replace(model, away)
    os.replace(away, model)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The first of two files."""
    model_file(tmp_path / "m-00002-of-00002.gguf")
    return Path(model_file(tmp_path / "m-00001-of-00002.gguf"))


@pytest.mark.parametrize("change", [moved, copied, copied_with_times, linked, second_part])
def test_what_ran_on_another_file_does_not_go_on(
    tmp_path: Path, model: Path, change: Callable[[Path], None]
) -> None:
    with (
        DaemonProcess(tmp_path, model=str(model), environment=SLOW, max_sessions=1) as daemon,
        daemon.client() as client,
    ):
        client.ask("a", "before", max_tokens=300)
        client.ask("b", "waits", max_tokens=5)
        client.wait_tokens("a", 3)
        pid = daemon.engine_pid()
        change(model)
        os.kill(pid, signal.SIGKILL)
        client.finish()
        a, b = client.results["a"], client.results["b"]
        assert a.error is not None and a.error["code"] == "E_RUNTIME_002"
        assert "is not the file that was loaded" in a.error["message"]
        while a.eos is None:
            client.receive()
        assert a.eos["reason"] == "error" and len(a.tokens) < 300
        assert bytes(a.tokens) == answer("before", len(a.tokens))
        # what had not begun is the new model's
        assert b.error is None and bytes(b.tokens) == answer("waits", 5)
        assert "1 requests end, and new ones get the model that is there now" in daemon.log


@pytest.mark.parametrize("change", [touched, copied_again, moved_and_back])
def test_the_same_model_in_the_same_place_goes_on(
    tmp_path: Path, model: Path, change: Callable[[Path], None]
) -> None:
    with (
        DaemonProcess(tmp_path, model=str(model), environment=SLOW) as daemon,
        daemon.client() as client,
    ):
        client.ask("a", "goes on", max_tokens=200)
        client.wait_tokens("a", 3)
        pid = daemon.engine_pid()
        change(model)
        os.kill(pid, signal.SIGKILL)
        (result,) = client.finish()
        assert result.error is None and bytes(result.tokens) == answer("goes on", 200)
        assert "is not the file" not in daemon.log


def test_an_attempt_that_fails_in_between_forgets_nothing(tmp_path: Path, model: Path) -> None:
    """The file is cut short while it is copied."""
    with (
        DaemonProcess(tmp_path, model=str(model), environment=SLOW) as daemon,
        daemon.client() as client,
    ):
        client.ask("a", "before", max_tokens=300)
        client.wait_tokens("a", 3)
        pid = daemon.engine_pid()
        broken = Path(f"{model}.broken")
        broken.touch()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: daemon.log.count("starting another") >= 2)
        moved(model)
        broken.unlink()
        (result,) = client.finish()
        assert result.error is not None and result.error["code"] == "E_RUNTIME_002"


def test_a_file_that_is_written_over_ends_its_engine(tmp_path: Path) -> None:
    """Its weights are mapped: they have changed under it."""
    model = Path(model_file(tmp_path / "model.gguf"))
    with (
        DaemonProcess(tmp_path, model=str(model), environment=SLOW) as daemon,
        daemon.client() as client,
    ):
        client.ask("a", "before", max_tokens=2000)
        client.wait_tokens("a", 3)
        touched(model)
        copied(model)
        (result,) = client.finish()
        assert result.error is not None and result.error["code"] == "E_RUNTIME_002"
        assert "was written over while it is served" in daemon.log
        assert bytes(client.generate("new", "b", max_tokens=5).tokens) == answer("new", 5)


def test_the_middle_of_a_large_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(b"GGUF" + bytes(2 * WHOLE_BYTES))
    before = identify(path)
    with path.open("r+b") as file:
        file.seek(WHOLE_BYTES)
        file.write(os.urandom(1 << 17))
    after = identify(path)
    assert after.digest != before.digest and after.files != before.files
    assert written_over(before, str(path)) == after
    assert written_over(after, str(path)) is None
    with path.open("ab") as file:
        file.write(b"x")
    assert identify(path).digest != after.digest


def test_a_name_that_counts_parts_and_a_file_that_has_none(tmp_path: Path) -> None:
    path = Path(model_file(tmp_path / "m-00001-of-99999.gguf"))
    assert len(file_facts(path)) == 1024 and identify(path).files[1] == ()
    with pytest.raises(FileNotFoundError):
        identify(tmp_path / "none-00001-of-00002.gguf")
