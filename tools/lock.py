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
CLIENTS = ROOT / "tests/clients"
TESTS = ROOT / "requirements-test.lock"
# What lm-eval asks for and no wheel is there of.  They are left out: some of its tasks and its
# cache of answers import them, and the tests use neither.
WITHOUT_WHEELS = ("rouge-score", "sqlitedict", "word2number")
LOCKS = {  # in this order: what runs is a part of what is tested, in the same versions
    TESTS: ("pyproject.toml", "--extra", "test"),
    ROOT / "requirements.lock": ("pyproject.toml", "--constraints", TESTS.name),
    toolchain.LOCK: ("--group", "tools"),
    # what both have is of one version
    CLIENTS / "clients.lock": ("--group", "clients", "-c", "requirements.lock"),
    CLIENTS / "libraries.lock": ("--group", "client-libraries"),
    CLIENTS / "agents.lock": ("--group", "client-agents"),
    CLIENTS / "aider.lock": ("--group", "client-aider"),
    CLIENTS / "lm-eval.lock": (
        "--group", "client-lm-eval",
        *(f"{option}={name}" for name in WITHOUT_WHEELS
          for option in ("--no-binary", "--no-emit-package")),
    ),
}  # fmt: skip
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
