"""Sweeping the cache: what nobody uses goes, and nothing that a process uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from umaserve.kept import in_use
from umaserve.llama import builds, leftovers

LONG_AGO_S = in_use.UNUSED_S + 3600.0


def made(path: Path, age_s: float = 0.0, stamp: bool = True) -> Path:
    """A folder that was used last so long ago; without a stamp, as older versions left them."""
    path.mkdir(parents=True)
    (path / "code").write_text("x")
    then = time.time() - age_s
    if stamp:
        (path / in_use.STAMP).touch()
        os.utime(path / in_use.STAMP, (then, then))
    os.utime(path, (then, then))
    return path


def process_that_holds(folder: Path) -> subprocess.Popen[str]:
    code = (
        "import sys; from umaserve.kept import in_use; in_use.hold(sys.argv[1]);"
        "print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("stamp", [True, False])
def test_what_nobody_used_for_long_goes(tmp_path: Path, stamp: bool) -> None:
    old = made(tmp_path / "old", LONG_AGO_S, stamp)
    new = made(tmp_path / "new", in_use.UNUSED_S - 3600.0, stamp)
    assert in_use.sweep([old, new]) == [old]
    assert os.listdir(tmp_path) == ["new"]


def test_a_folder_in_use_stays_and_counts_as_used(tmp_path: Path) -> None:
    folder = made(tmp_path / "old", LONG_AGO_S)
    with process_that_holds(folder) as process:
        # as if that process had begun long ago
        os.utime(folder / in_use.STAMP, (0, 0))
        assert in_use.sweep([folder]) == []
        assert (folder / "code").exists()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
    assert in_use.sweep([folder]) == [], "it was in use a moment ago"
    os.utime(folder / in_use.STAMP, (0, 0))
    assert in_use.sweep([folder]) == [folder]


def test_a_killed_process_uses_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path / "old", LONG_AGO_S)
    with process_that_holds(folder) as process:
        process.kill()
    os.utime(folder / in_use.STAMP, (0, 0))
    assert in_use.sweep([folder]) == [folder]


def test_more_than_the_newest_go_unless_they_are_in_use(tmp_path: Path) -> None:
    folders = [made(tmp_path / str(hours), hours * 3600.0) for hours in range(5)]
    with process_that_holds(folders[4]) as process:
        os.utime(folders[4] / in_use.STAMP, (0, 0))
        assert in_use.sweep(folders, newest=2) == folders[2:4]
        process.kill()


def test_what_a_killed_sweep_left_goes(tmp_path: Path) -> None:
    made(tmp_path / ".old-x-1")
    made(tmp_path / ".tmp-y-1")
    in_use.sweep_remains(tmp_path)
    assert os.listdir(tmp_path) == [".tmp-y-1"]


@pytest.fixture
def make_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, float], builds.Build]:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))

    def make(source: str, age_s: float) -> builds.Build:
        folder = tmp_path / "llama" / f"{source}-cpu"
        (folder / "lib").mkdir(parents=True)
        (folder / "lib" / f"libllama.{builds.library_suffix()}").touch()
        facts = dict.fromkeys(("key", "backend", "version", "commit"), "x")
        manifest = {**facts, "format": builds.MANIFEST_FORMAT, "source": source, "created": 1}
        (folder / builds.MANIFEST).write_text(json.dumps(manifest))
        then = time.time() - age_s
        (folder / in_use.STAMP).touch()
        os.utime(folder / in_use.STAMP, (then, then))
        build = builds.read_build(folder)
        assert build is not None
        return build

    return make


def test_only_builds_of_other_versions_go(
    tmp_path: Path, make_build: Callable[[str, float], builds.Build]
) -> None:
    for source in (builds.PINNED_VERSION, "tree-0123456789ab", "0.3.1"):
        make_build(source, LONG_AGO_S)
    make_build("0.3.2", 3600.0)
    leftovers.sweep()
    left = {folder.name for folder in (tmp_path / "llama").iterdir()}
    assert left == {f"{builds.PINNED_VERSION}-cpu", "tree-0123456789ab-cpu", "0.3.2-cpu"}


def test_parts_of_other_versions_go_from_a_build_that_stays(
    make_build: Callable[[str, float], builds.Build],
) -> None:
    build = make_build(builds.PINNED_VERSION, 0.0)
    for folder in (build.chat_dir, build.path / "chat/old", build.path / "python/old"):
        made(folder, LONG_AGO_S)
    made(build.path / "chat/new", 3600.0)
    leftovers.sweep()
    assert {folder.name for folder in (build.path / "chat").iterdir()} == {
        build.chat_dir.name, "new",
    }  # fmt: skip
    assert os.listdir(build.path / "python") == []


def test_archives_of_other_versions_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path))
    (tmp_path / "src").mkdir()
    for version, age_s in ((builds.PINNED_VERSION, LONG_AGO_S), ("0.1", LONG_AGO_S), ("0.2", 0.0)):
        path = tmp_path / "src" / f"llama_cpp_python-{version}.tar.gz"
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
    leftovers.sweep()
    left = {path.name for path in (tmp_path / "src").iterdir()}
    assert left == {f"llama_cpp_python-{v}.tar.gz" for v in (builds.PINNED_VERSION, "0.2")}
