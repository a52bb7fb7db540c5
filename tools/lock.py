"""Writes the lock files anew from the ranges in pyproject.toml: ``make lock``.

What is locked stays as it is while pyproject.toml admits it; ``make lock ARGS=--upgrade`` takes the
newest of everything, ``ARGS="--upgrade-package numba"`` that of one package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from umaserve.llama.building import BuildError, toolchain
from umaserve.llama.building.progress import Reporter

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "requirements-test.lock"
LOCKS = {  # in this order: what runs is a part of what is tested, in the same versions
    TESTS: ("pyproject.toml", "--extra", "test"),
    ROOT / "requirements.lock": ("pyproject.toml", "--constraints", TESTS.name),
    toolchain.LOCK: ("--group", "tools"),
    # what both have is of one version
    ROOT / "tests/clients/clients.lock": ("--group", "clients", "-c", "requirements.lock"),
}
OPTIONS = (
    # one file for each Python and system, with what differs behind markers
    "--universal", "--python-version", "3.10",
    # of wheels alone: what builds others would come without a hash
    "--generate-hashes", "--only-binary", ":all:",
    "--no-emit-index-url", "--custom-compile-command", "make lock", "--quiet",
)  # fmt: skip


def main(words: list[str]) -> int:
    """Runs uv, which is pinned itself, for each lock file; `words` are options of uv's."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            uv = toolchain.from_index("uv", Path(folder) / "log", Reporter())
        except BuildError as error:
            print(f"lock: {error}", file=sys.stderr)
            return 1
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    for lock, what in LOCKS.items():
        command = [uv, "pip", "compile", *OPTIONS, *words, "--output-file", lock, *what]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
