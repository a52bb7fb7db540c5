"""Copies of the package that compile for themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


_FOLDER = """
from umaserve.jit import cache as jit_cache
print(jit_cache.jit_cache_dir())
"""


# one function of the gate's: what it does is of no interest, where its code comes from is
_COMPILE = """
from umaserve.jit import cache as jit_cache
jit_cache.use_jit_cache()
from numba import from_dtype, int64
from umaserve.engine.prefill.gate import GATE, _expected
_expected.compile((from_dtype(GATE), int64))
stats = _expected.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), stats.cache_path)
"""


def run(copy: Path, script: str, **environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=copy, capture_output=True, text=True,
        env={**kept, "PYTHONPATH": str(copy), "UMA_CACHE_DIR": str(copy.parent / "cache"),
             **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def copies(tmp_path: Path) -> list[Path]:
    skip = shutil.ignore_patterns("__pycache__", "assets")
    found = [tmp_path / "one", tmp_path / "another" / "deeper"]
    for path in found:
        shutil.copytree(ROOT / "umaserve", path / "umaserve", ignore=skip)
    return found


_USE = """
from umaserve.jit import cache as jit_cache
print(jit_cache.use_jit_cache())
import os
print(os.environ["NUMBA_CACHE_DIR"], jit_cache.is_complete())
"""
