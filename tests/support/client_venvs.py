"""Virtual environments of programs that others wrote, one for each lock file beside their tests.

``python -m tests.support.client_venvs`` makes those that are missing, in the user's cache; this is
a step of ``make test-clients``.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from umaserve.llama.building.locking import file_lock
from umaserve.llama.builds import cache_root, python_abi
from umaserve.system.private_folder import make_private

LOCKS = Path(__file__).resolve().parents[1] / "clients"
# What is in clients.lock is in the tests' own environment.  The first Python that each does not
# run with, as in pyproject.toml:
OWN = {"libraries": (3, 15), "agents": (3, 15), "aider": (3, 13), "lm-eval": (3, 15)}


def folder_of(name: str) -> Path:
    """Where it is, or will be; another lock file or another Python has another place."""
    digest = hashlib.sha256((LOCKS / f"{name}.lock").read_bytes()).hexdigest()[:12]
    return cache_root() / "clients" / f"{name}-{digest}-{python_abi()}"


def why_missing(name: str) -> str:
    """In words; empty where the environment is there."""
    if sys.version_info >= OWN[name]:
        return f"{name} does not run with Python {sys.version_info.major}.{sys.version_info.minor}"
    if not (folder_of(name) / ".ready").exists():
        return f"{name} is not installed: `make test-clients` does it"
    return ""


def make(name: str) -> None:
    """Installs what the lock file pins, by its hashes.  Raises ``CalledProcessError``."""
    folder = folder_of(name)
    make_private(folder.parent)

    with file_lock(folder.parent / f".{folder.name}.lock", f"installing {name}", print):
        if not why_missing(name):
            return
        print(f"installing {name} for the tests of clients, in {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        # the lock file has all that is needed, so nothing is looked for beside it
        subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", "--disable-pip-version-check",
             "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:",
             "-r", LOCKS / f"{name}.lock"],
            check=True,
        )  # fmt: skip
        (folder / ".ready").touch()


def main() -> int:
    for name in OWN:
        if sys.version_info >= OWN[name]:
            print(why_missing(name), flush=True)
            continue
        try:
            make(name)
        except subprocess.CalledProcessError as error:
            print(f"{name} was not installed: pip ended with {error.returncode}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
