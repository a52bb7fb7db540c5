"""Our processes run nothing that lies in the folder in which they start."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import umaserve
from umaserve.system.own_python import run_code, run_module

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder with modules of another user's, which leave a mark."""
    folder = tmp_path / "trap"
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').write(__name__)\n"
    for name in ("json", "ctypes", "argparse", "msgspec", "numpy", "runpy", "cffi", "pip"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(mark)
    (folder / "umaserve").mkdir()
    (folder / "umaserve" / "__init__.py").write_text(mark)
    return folder


def run(command: list[str], folder: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120,
        env={**kept, **environment},
    )  # fmt: skip
    assert not (folder.parent / "mark").exists(), done.stderr
    return done.stdout + done.stderr


def test_the_trap_works(trap: Path) -> None:
    command = [run_code("")[0], "-m", "umaserve.engine", "--help"]
    with pytest.raises(AssertionError):
        run(command, trap)


def test_an_engine_imports_nothing_from_there(trap: Path) -> None:
    assert "--control FD" in run([*run_module("umaserve.engine"), "--help"], trap)


def test_a_command_and_its_children_import_nothing_from_there(trap: Path) -> None:
    command = [*run_module("umaserve"), "doctor", "--socket", str(trap / "sock")]
    assert "library" in run(command, trap, UMA_CACHE_DIR=str(trap / "cache"))
    assert "pip" in run([*run_module("pip"), "--version"], trap)
    assert "[]\n" in run(run_code("import json; print(json.dumps([]))"), trap)


def test_modules_are_those_that_this_process_has(tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text("import sys, umaserve; print(umaserve.__file__, sys.argv)")
    (tmp_path / "umaserve.py").touch()  # another of that name
    out = run([*run_module("where"), "x"], tmp_path, PYTHONPATH=str(tmp_path))
    assert out.split()[0] == umaserve.__file__ and "'x']" in out


def test_nothing_starts_python_in_another_way() -> None:
    way = re.compile(r"sys\.executable,\s*[\"']-")
    found = [
        str(path.relative_to(ROOT))
        for path in [*(ROOT / "umaserve").rglob("*.py"), *(ROOT / "bindings").glob("*.py")]
        if way.search(path.read_text("utf-8"))
    ]
    assert found == ["umaserve/system/own_python.py"]
