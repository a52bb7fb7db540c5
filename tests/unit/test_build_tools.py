"""cmake and ninja: the machine's own, else the wheel with the pinned hash and no other."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fixtures.tiny_wheel import lock_line, only_from, write_wheel
from umaserve.llama import builds
from umaserve.llama.building import BuildError, toolchain
from umaserve.llama.building.progress import Reporter

ELSE = "5e" * 32


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Pins a version of ninja by its hash; an empty cache, and an index that has ninja 1.5."""
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in only_from(tmp_path / "index").items():
        monkeypatch.setenv(name, value)
    lock = tmp_path / "tools.lock"
    monkeypatch.setattr(toolchain, "LOCK", lock)

    def write(version: str, digest: str) -> None:
        lines = lock_line("ninja", version, ELSE).rstrip() + f" \\\n    --hash=sha256:{digest}\n"
        lock.write_text(f"{lock_line('cmake', '4.0', ELSE)}    # via\n{lines}    # via\n", "utf-8")

    return write


def ninja(tmp_path: Path) -> str:
    return toolchain.from_index("ninja", tmp_path / "log", Reporter(io.StringIO()))


def tools(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache/tools").iterdir() if path.is_dir()]


def test_the_wheel_with_the_pinned_hash_is_taken(
    tmp_path: Path, pin: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pin("1.5", write_wheel(tmp_path / "index", "ninja", "1.5", "pinned"))
    write_wheel(tmp_path / "index", "ninja", "1.6", "newer")
    before = tmp_path / "cache/tools" / f"ninja-{builds.python_abi()}" / "bin/ninja"
    before.parent.mkdir(parents=True)
    before.write_text("#!/bin/sh\necho from before there were pins\n")
    before.chmod(0o755)
    program = ninja(tmp_path)
    assert subprocess.check_output([program], text=True) == "pinned\n"
    monkeypatch.setattr(toolchain, "pip_command", lambda: ["/nonexistent"])
    assert ninja(tmp_path) == program, "the second time runs no pip"


def test_a_wheel_with_another_hash_is_refused(
    tmp_path: Path, pin: Callable[[str, str], None]
) -> None:
    found = write_wheel(tmp_path / "index", "ninja", "1.5", "another")
    pin("1.5", "ab" * 32)
    with pytest.raises(BuildError) as caught:
        ninja(tmp_path)
    said = str(caught.value)
    assert said.startswith(
        "ninja 1.5 from the package index is not the file that this project was made with.\n"
        "It was not installed."
    )
    assert "ab" * 32 in said and found in said
    assert "which package index pip is configured for" in said
    assert "Install ninja yourself, so that it is on PATH" in said
    assert tools(tmp_path) == []


def test_a_version_that_the_index_lacks_is_no_matter_of_hashes(
    tmp_path: Path, pin: Callable[[str, str], None]
) -> None:
    write_wheel(tmp_path / "index", "ninja", "1.6", "newer")
    pin("1.5", "ab" * 32)
    with pytest.raises(BuildError, match=r"(?s)^installing ninja 1\.5 failed.*on PATH"):
        ninja(tmp_path)
    assert tools(tmp_path) == []


def test_a_program_that_is_not_pinned_is_not_fetched(
    tmp_path: Path, pin: Callable[[str, str], None]
) -> None:
    pin("1.5", "ab" * 32)
    with pytest.raises(BuildError, match=r"pins no meson"):
        toolchain.from_index("meson", tmp_path / "log", Reporter(io.StringIO()))


def test_tools_of_the_machine_are_taken_first(
    tmp_path: Path, pin: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older cmake than is needed is not; then it is the pinned one."""
    for name in ("cc", "c++", "cmake", "ninja"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\necho cmake version 3.25.1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain, "from_index", lambda name, *_: f"pinned {name}")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    report = Reporter(io.StringIO())
    found = toolchain.find_toolchain(tmp_path / "log", report)
    assert (found.cmake, found.ninja) == (str(tmp_path / "bin/cmake"), str(tmp_path / "bin/ninja"))
    (tmp_path / "bin/cmake").write_text("#!/bin/sh\necho cmake version 3.10.2\n")
    (tmp_path / "bin/ninja").unlink()
    found = toolchain.find_toolchain(tmp_path / "log", report)
    assert (found.cmake, found.ninja) == ("pinned cmake", "pinned ninja")
