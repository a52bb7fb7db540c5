"""A wheel and a source distribution of this project, made of what git knows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def make_packages(folder: Path) -> dict[str, Path]:
    """``wheel`` and ``sdist``, in ``folder``.  Skips where there is no git to ask."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this copy of the project is no git clone, so nobody knows what belongs to it")
    source, out = folder / "source", folder / "dist"
    out.mkdir()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in names.stdout.decode().strip("\0").split("\0"):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index",
         "--no-build-isolation", "-w", out, "."],
        cwd=source, check=True,
    )  # fmt: skip
    shutil.rmtree(source / "build", ignore_errors=True)
    subprocess.run(
        [sys.executable, "-c", _SDIST, out], cwd=source, check=True, stdout=subprocess.DEVNULL
    )
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}
