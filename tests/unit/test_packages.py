"""The Homebrew formula, and wrong words to what makes packages."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import formula

ROOT = Path(__file__).resolve().parents[2]
URL = "https://example.org/a/umaserve-1.tar.gz"


def test_the_formula_is_of_the_file_that_is_named(tmp_path: Path) -> None:
    sdist = tmp_path / "umaserve-1.tar.gz"
    sdist.write_bytes(b"content")
    text = formula.formula(sdist, URL)
    digest = hashlib.sha256(b"content").hexdigest()
    assert f'\n  url "{URL}"\n  sha256 "{digest}"\n' in text
    assert "tools.formula" not in text
    before = formula.FORMULA.read_text("utf-8").splitlines()
    assert len(set(text.splitlines()) - set(before)) == 2, "nothing else changes"


def test_ruby_reads_the_formula() -> None:
    if shutil.which("ruby") is None:
        pytest.skip("there is no ruby here")
    done = subprocess.run(["ruby", "-wc", formula.FORMULA], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Syntax OK\n", "")


@pytest.mark.parametrize(
    ("words", "status"),
    [(["tools.formula"], 2), (["tools.formula", "--help"], 0), (["tools.formula", "none", URL], 1),
     (["tools.deb"], 2), (["tools.deb", "--help"], 0), (["tools.deb", "none.whl"], 1)],
)  # fmt: skip
def test_wrong_words_are_told(words: list[str], status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr and bool(done.stderr) == (status != 0)
