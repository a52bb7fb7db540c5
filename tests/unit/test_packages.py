"""The Homebrew formula and the Debian package, as far as they can be tried without installing."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.made_packages import make_packages
from tests.support.package_index import no_index_reachable
from tools import deb, formula

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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_debian_package_runs_for_the_machines_python(tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None or not Path(deb.PYTHON).exists():
        pytest.skip("this is no Debian with a Python of its own")
    try:
        package = deb.make(make_packages(tmp_path)["wheel"])
    except deb.CannotMake as error:
        if no_index_reachable(str(error)):
            pytest.skip("no package index can be reached, so nothing can be installed")
        raise
    fields = subprocess.run(
        ["dpkg-deb", "--field", package], capture_output=True, text=True, check=True
    ).stdout
    assert "Package: umaserve\n" in fields and "g++" in fields
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "tree"], check=True)
    library = tmp_path / "tree/usr/lib/umaserve"
    for name in ("umaserve", "uma-cli"):
        command = tmp_path / "tree/usr/bin" / name
        moved = command.read_text("utf-8").replace("/usr/lib/umaserve", str(library))
        script = tmp_path / name
        script.write_text(moved, "utf-8")
        done = subprocess.run(
            [deb.PYTHON, "-I", script, "--help"], capture_output=True, text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0 and f"usage: {name} " in done.stdout, done.stderr
